# One image for every part: `ncp api`, `ncp worker`, or `ncp serve` for all of it.
FROM python:3.11.13-slim-bookworm AS build
WORKDIR /src
# What is installed is pinned with its digest: x86-64 only. For another processor write it anew there: make hashes.
COPY image-requirements.txt ./
RUN python -m venv /opt/ncp && /opt/ncp/bin/pip install --no-cache-dir --compile --require-hashes -r image-requirements.txt
COPY pyproject.toml README.md LICENSE ./
COPY solvers solvers
COPY worker worker
COPY app app
COPY ncp_client ncp_client
COPY src src
# pip compiles to bytecode as it installs, so no start pays for it.
RUN /opt/ncp/bin/pip install --no-cache-dir --compile --no-deps --no-build-isolation ./ncp_client .

FROM python:3.11.13-slim-bookworm
# HALS and others compile with numba on first use; the cache must be writable for the user that runs them.
ENV PATH=/opt/ncp/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    NUMBA_CACHE_DIR=/var/cache/ncp \
    NCP_DATA=/var/lib/ncp \
    NCP_HOST=0.0.0.0 \
    NCP_PORT=8000
RUN useradd --system --uid 10001 --home-dir /var/lib/ncp ncp \
    && install -d -m 0700 -o ncp -g ncp /var/lib/ncp /var/cache/ncp
COPY --from=build /opt/ncp /opt/ncp
USER ncp
VOLUME /var/lib/ncp
EXPOSE 8000
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=20s --retries=3 \
    CMD python -c "import urllib.request; urllib.request.urlopen('http://127.0.0.1:$NCP_PORT/healthz', timeout=4)"
CMD ["ncp", "api"]
