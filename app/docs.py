"""/docs without the internet: Swagger UI comes from an installed package, not from a CDN. And the first page."""

import base64
import hashlib
import re
from importlib.resources import files
from pathlib import Path

from fastapi import APIRouter, FastAPI
from fastapi.openapi.docs import get_swagger_ui_html
from starlette.responses import HTMLResponse
from starlette.staticfiles import StaticFiles

from app.security import POLICY

ASSETS = "/docs/assets"
PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>sparse-ncp</title>
<h1>sparse-ncp</h1>
<p>A lab server for sparse nonnegative CP decomposition.</p>
<ul>
<li><a href="docs">The API, to read and try</a> (<a href="openapi.json">openapi.json</a>)</li>
<li><a href="v1/methods">The methods</a></li>
<li><a href="readyz">Is it ready?</a></li>
</ul>
</html>
"""
router = APIRouter(include_in_schema=False)


@router.get("/")
async def page() -> HTMLResponse:
    return HTMLResponse(PAGE)


@router.get("/docs")
async def docs() -> HTMLResponse:
    page = get_swagger_ui_html(
        openapi_url="openapi.json",
        title="sparse-ncp",
        swagger_js_url=f".{ASSETS}/swagger-ui-bundle.js",
        swagger_css_url=f".{ASSETS}/swagger-ui.css",
        swagger_favicon_url=f".{ASSETS}/favicon.png",
        oauth2_redirect_url=None,
    )
    page.headers[POLICY] = _policy(bytes(page.body).decode())
    return page


def _policy(page: str) -> str:
    """Our own files, and the very script that is written in the page; Swagger UI sets styles from its script."""
    written = [script.encode() for script in re.findall(r"<script>(.*?)</script>", page, re.DOTALL)]
    digests = [base64.b64encode(hashlib.sha256(script).digest()).decode() for script in written]
    scripts = " ".join(["'self'", *(f"'sha256-{digest}'" for digest in digests)])
    return (
        f"default-src 'none'; script-src {scripts}; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


def mount_assets(app: FastAPI) -> None:
    """fastapi-offline is used for its files only: they are a Swagger UI that knows OpenAPI 3.1."""
    static = Path(str(files("fastapi_offline") / "static"))
    app.mount(ASSETS, StaticFiles(directory=static), name="assets")
