"""The rate limit, or throttling: request tokens per owner, and the RateLimit headers of every response."""

from sparse_ncp.app.auth.authenticate import Caller
from sparse_ncp.app.errors.exceptions import RateLimitExceeded
from sparse_ncp.worker.contract import Allowance
from sparse_ncp.worker.errors import WritesRefused
from sparse_ncp.worker.records.records import Records

POLICY = "requests"


def take_token(caller: Caller, records: Records) -> Allowance | None:
    """Take a token of the caller's owner, if their requests are limited. Blocks: it is a call to Redis.

    A Redis that refuses to write counts no requests: what can be read is read on, and the rest is refused anyway.
    """
    rate = caller.limits.requests_per_second
    if rate is None:
        return None
    try:
        return records.stats.take_request_token(caller.owner, rate)
    except WritesRefused:
        return None


def check_rate(allowance: Allowance | None) -> None:
    """Raise RateLimitExceeded if there was no token left."""
    if allowance is not None and not allowance.granted:
        raise RateLimitExceeded(allowance)


def rate_limit_headers(allowance: Allowance | None) -> dict[str, str]:
    """Return the headers of draft-ietf-httpapi-ratelimit-headers-11: the policy, and how much of it is left."""
    if allowance is None:
        return {}
    return {
        "RateLimit-Policy": f'"{POLICY}";q={allowance.quota};w={allowance.window_seconds}',
        "RateLimit": f'"{POLICY}";r={allowance.left};t={allowance.wait_seconds}',
    }
