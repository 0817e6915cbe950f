"""The page at /, and /docs: Swagger UI from an installed package, so that it needs no internet.

`/` is `app/static/index.html`, `/static/…` are the files beside it, and `/static/vendor/plotly.min.js` is the script of
the installed package plotly. The page names its files by relative paths in double quotes, `"static/…`: they are served
with a version in front, `static/<version>/…`, which browsers keep for good. What a module imports by a relative path
(`./charts.js`, `../vendor/plotly.min.js`) lies below the same version.
"""

import base64
import hashlib
import re
from importlib.resources import files
from pathlib import Path

from fastapi import APIRouter, FastAPI, Request
from fastapi.openapi.docs import get_swagger_ui_html
from starlette.responses import HTMLResponse, Response
from starlette.staticfiles import StaticFiles

from sparse_ncp.app.responses import CONTENT_SECURITY_POLICY
from sparse_ncp.app.streaming.assets import serve_asset, serve_page

ASSETS = "/docs/assets"
# The page loads its own files only, and calls this server only. plotly sets style attributes, draws heat maps as data:
# images, and saves a picture by way of a blob: it needs no style sheet of its own, and no script that is made of text.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; style-src-attr 'unsafe-inline'; "
    "img-src 'self' data: blob:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
router = APIRouter(include_in_schema=False)


def page(request: Request) -> Response:
    return serve_page(request, "index.html", {CONTENT_SECURITY_POLICY: POLICY})


def static_file(request: Request) -> Response:
    return serve_asset(request, request.path_params["name"])


# Not a route of the API: a link may bring a query that means something to others.
router.add_route("/", page)


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
    # For our own files and the inline script of this page. Swagger UI sets styles from its script.
    inline = re.findall(rb"<script>(.*?)</script>", bytes(page.body), re.DOTALL)
    digests = [base64.b64encode(hashlib.sha256(script).digest()).decode() for script in inline]
    scripts = " ".join(["'self'", *(f"'sha256-{digest}'" for digest in digests)])
    page.headers[CONTENT_SECURITY_POLICY] = (
        f"default-src 'none'; script-src {scripts}; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return page


def mount_assets(app: FastAPI) -> None:
    """Serve the files of the page, and those of Swagger UI: fastapi-offline has some that support OpenAPI 3.1."""
    app.router.add_route("/static/{name:path}", static_file, include_in_schema=False)
    static = Path(str(files("fastapi_offline") / "static"))
    app.mount(ASSETS, StaticFiles(directory=static), name="assets")
