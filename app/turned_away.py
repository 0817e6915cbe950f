"""Why a request does not get past the gate. Each knows the headers that its answer needs."""

from collections.abc import Mapping

from worker.limits import Allowance

REALM = 'Bearer realm="sparse-ncp"'


class TurnedAway(Exception):
    """`headers` go into the answer."""

    def __init__(self, reason: str, headers: Mapping[str, str]) -> None:
        super().__init__(reason)
        self.headers = headers


class NoKey(TurnedAway):
    def __init__(self) -> None:
        super().__init__("this server asks for a key", {"WWW-Authenticate": REALM})


class UnknownKey(TurnedAway):
    def __init__(self) -> None:
        super().__init__("the key is unknown, or was revoked", {"WWW-Authenticate": f'{REALM}, error="invalid_token"'})


class UnknownHost(TurnedAway):
    def __init__(self) -> None:
        super().__init__("the Host header names no address of this server", {})


class TooFast(TurnedAway):
    def __init__(self, allowance: Allowance) -> None:
        reason = f"over {allowance.quota} requests in {allowance.window_seconds} seconds"
        super().__init__(reason, {"Retry-After": str(allowance.wait_seconds)})
