"""The files of the page: read and compressed once, named by their content so that browsers may keep them."""

import gzip
import hashlib
import time
from collections.abc import Mapping
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from sparse_ncp.app.streaming.download import matches

FOLDER = Path(__file__).parents[1] / "static"
# Files of installed packages, below a name of their own: no copy of them is kept here.
VENDORED = {"vendor/plotly.min.js": ("plotly", "package_data/plotly.min.js")}
MEDIA_TYPES: Mapping[str, str] = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".ico": "image/x-icon",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".webmanifest": "application/manifest+json",
    ".woff2": "font/woff2",
}
COMPRESSED = frozenset({".css", ".html", ".js", ".json", ".svg"})
# Below a version that is the digest of all files: what it names never changes. Without one a browser asks each time.
IMMUTABLE, REVALIDATED = "public, max-age=31536000, immutable", "no-cache"
# A load of the page asks for dozens of files: the folder is not walked for each of them.
RESCAN_SECONDS = 1.0


class Asset(NamedTuple):
    """The content of a file, and its compressed form; `packed` is None if compression does not make it smaller."""

    content: bytes
    packed: bytes | None
    digest: str


class Folder(NamedTuple):
    """All files of the folder by name, and one `version` of their contents. No other path is ever opened."""

    paths: Mapping[str, Path]
    version: str


@lru_cache(maxsize=256)
def _load(path: Path, _modified: int) -> Asset:
    content = path.read_bytes()
    packed = gzip.compress(content, mtime=0) if path.suffix in COMPRESSED else content
    return Asset(content, packed if len(packed) < len(content) else None, hashlib.sha256(content).hexdigest())


def load(path: Path) -> Asset:
    """Return a file, read again only after it has changed."""
    return _load(path, path.stat().st_mtime_ns)


def _folder() -> Folder:
    """Return the folder as it was at most RESCAN_SECONDS ago."""
    return _look(int(time.monotonic() / RESCAN_SECONDS))


@lru_cache(maxsize=1)
def _look(_moment: int) -> Folder:
    own = {str(path.relative_to(FOLDER)): path for path in sorted(FOLDER.rglob("*")) if path.suffix in MEDIA_TYPES}
    paths = dict(own)
    for name, (package, inside) in VENDORED.items():
        found = find_spec(package)  # does not import it
        if found is None or found.origin is None:
            raise FileNotFoundError(f"the package {package} is not installed")
        paths[name] = Path(found.origin).parent / inside
    digest = hashlib.sha256()
    for name, path in paths.items():
        digest.update(f"{name} {load(path).digest}\n".encode())
    return Folder(paths, digest.hexdigest()[:16])


def version() -> str:
    """Return the version of all files together."""
    return _folder().version


def serve_page(request: Request, name: str, headers: Mapping[str, str]) -> Response:
    """Serve an HTML page, with the version in the paths of its files; browsers check each time whether it changed."""
    text = load(FOLDER / name).content.replace(b'"static/', f'"static/{version()}/'.encode())
    packed, digest = gzip.compress(text, mtime=0), hashlib.sha256(text).hexdigest()
    return _answer(request, Asset(text, packed, digest), ".html", {**headers, "Cache-Control": REVALIDATED})


def serve_asset(request: Request, name: str) -> Response:
    """Serve a file by its name, with or without a version in front. For an old version, the current file is sent."""
    folder, (first, _, rest) = _folder(), name.partition("/")
    is_current = first == folder.version
    path = folder.paths.get(name) or folder.paths.get(rest)
    if path is None:
        raise HTTPException(404)
    headers = {"Cache-Control": IMMUTABLE if is_current else REVALIDATED}
    return _answer(request, load(path), path.suffix, headers)


def _answer(request: Request, asset: Asset, suffix: str, headers: Mapping[str, str]) -> Response:
    packed = asset.packed if _takes_gzip(request.headers.get("accept-encoding", "")) else None
    etag = f'"{asset.digest}{"" if packed is None else "-gzip"}"'
    known = {**headers, "ETag": etag, "Vary": "Accept-Encoding"}
    if matches(request.headers.get("if-none-match"), etag):
        return Response(status_code=304, headers=known)
    if packed is not None:
        known["Content-Encoding"] = "gzip"
    return Response(asset.content if packed is None else packed, headers=known, media_type=MEDIA_TYPES[suffix])


def _takes_gzip(accepted: str) -> bool:
    """Return whether Accept-Encoding names gzip, and not with a weight of zero."""
    for part in accepted.lower().split(","):
        coding, _, weight = part.partition(";")
        if coding.strip() == "gzip":
            return weight.replace(" ", "") not in ("q=0", "q=0.0", "q=0.00", "q=0.000")
    return False
