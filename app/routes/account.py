"""The caller: what they use of the server and their limits, and the session of a browser."""

from typing import Annotated

from fastapi import APIRouter, Depends, Request
from pydantic import AwareDatetime, Field
from starlette.responses import JSONResponse, Response

from sparse_ncp.app.auth.api_keys import digest_of
from sparse_ncp.app.auth.authenticate import API_PREFIX, SESSION_PATH, Authenticator
from sparse_ncp.app.auth.authenticate import Caller as _Caller
from sparse_ncp.app.auth.hosts import network_of
from sparse_ncp.app.auth.sessions import COOKIE
from sparse_ncp.app.deps import Caller, Config, Records, only_json
from sparse_ncp.app.errors.exceptions import (
    InvalidCredentials,
    MissingCredentials,
    NoSignIn,
    RateLimitExceeded,
    SessionEnded,
)
from sparse_ncp.app.routes.openapi import error_responses
from sparse_ncp.worker.config import Configuration
from sparse_ncp.worker.contract import Usage
from sparse_ncp.worker.owner_limits import FrozenModel, Limits

# Attempts to sign in from one address, and with one key from anywhere: ten at once, then one a second. Enough for
# people who mistype, and far too few to guess a key of 32 random bytes.
ATTEMPTS_PER_SECOND = 1.0
router = APIRouter(tags=["server"])


class OwnUsage(Usage):
    """Your usage, and your limits."""

    admin: bool = Field(description="whether your key opens /v1/admin")
    limits: Limits


@router.get(f"{API_PREFIX}/usage", response_model=OwnUsage, responses=error_responses())
def get_usage(caller: Caller, records: Records) -> Response:
    """Get your stored bytes, jobs and computing time, and your limits. A limit of null means that there is none."""
    taken = records.stats.usage(caller.owner).model_dump()
    return JSONResponse({**taken, "admin": caller.admin, "limits": caller.limits.model_dump()})


class SignIn(FrozenModel):
    """The key to sign in with. The server does not store it."""

    key: Annotated[str, Field(min_length=1, max_length=200, description="as `ncp keys create` printed it")]


class SessionAnswer(FrozenModel):
    """The caller, and whether the server requires a key."""

    required: bool = Field(description="whether this server asks for a key")
    owner: str | None = Field(description="whose tensors and jobs these are; null if you must sign in")
    admin: bool = Field(description="whether /v1/admin is open to you")
    expires_at: AwareDatetime | None = Field(description="when you must sign in again; null without a session")


@router.get(SESSION_PATH, response_model=SessionAnswer, responses=error_responses())
def get_session(request: Request) -> SessionAnswer:
    """Get the caller, by session or key. Without either the owner is null, so that the page can ask for a key."""
    authenticator: Authenticator = request.app.state.authenticator
    required = not authenticator.is_open(request)
    try:
        return _answer(request.app.state.identify(request), required)
    except (InvalidCredentials, MissingCredentials, SessionEnded):
        return SessionAnswer(required=required, owner=None, admin=False, expires_at=None)


def _answer(caller: _Caller, required: bool) -> SessionAnswer:
    return SessionAnswer(required=required, owner=caller.owner, admin=caller.admin, expires_at=caller.session_ends_at)


@router.post(
    SESSION_PATH,
    status_code=201,
    response_model=SessionAnswer,
    responses=error_responses(400, 403, 409, 413, 415),
    dependencies=[Depends(only_json)],
)
def sign_in(request: Request, body: SignIn, records: Records, config: Config) -> Response:
    """Start a session. The response sets a cookie that replaces the key for NCP_SESSION_HOURS.

    The session ends earlier if you sign out, or if the key is revoked.
    """
    authenticator: Authenticator = request.app.state.authenticator
    if authenticator.is_open(request):
        raise NoSignIn
    secret = body.key.strip()
    caller_network = network_of(request.client.host if request.client else "")
    for limited in (f"sign-in:{caller_network}", f"sign-in-key:{digest_of(secret)}"):
        allowance = records.stats.take_request_token(limited, ATTEMPTS_PER_SECOND)
        if not allowance.granted:
            raise RateLimitExceeded(allowance)
    token, caller = authenticator.sign_in(secret)
    answer = JSONResponse(_answer(caller, required=True).model_dump(mode="json"), 201)
    _set_cookie(answer, request, config, token)
    return answer


@router.delete(SESSION_PATH, status_code=204, responses=error_responses(403))
def sign_out(request: Request, config: Config) -> Response:
    """End the session of this browser, if there is one."""
    request.app.state.authenticator.sign_out(request)
    answer = Response(status_code=204)
    _set_cookie(answer, request, config, None)
    return answer


def _set_cookie(answer: Response, request: Request, config: Configuration, token: str | None) -> None:
    """Set the session cookie, for this server only and hidden from scripts; without a token, delete it.

    Behind a proxy with TLS, only the Origin header shows that the browser uses https.
    """
    secure = "https" in (request.scope["scheme"], request.headers.get("origin", "").partition(":")[0].lower())
    answer.set_cookie(
        COOKIE,
        token or "",
        max_age=0 if token is None else int(config.session_hours * 3600),
        path=config.root_path or "/",
        secure=secure,
        httponly=True,
        samesite="strict",
    )
