"""Callers with real keys."""

from collections.abc import Iterator
from contextlib import contextmanager

import httpx

from worker.configuration import Configuration
from worker.key_files import KeyFiles
from worker.limits import Limits


@contextmanager
def holder(address: str, secret: str | None) -> Iterator[httpx.Client]:
    """Whoever has this key; None has none."""
    headers = {} if secret is None else {"Authorization": f"Bearer {secret}"}
    with httpx.Client(base_url=address, timeout=30, headers=headers, trust_env=False) as made:
        yield made


@contextmanager
def new_holder(
    configuration: Configuration, address: str, name: str, admin: bool = False, **limits: float | None
) -> Iterator[httpx.Client]:
    """Somebody with a new key."""
    secret = KeyFiles(configuration.data).create(name, admin, Limits.model_validate(limits))
    with holder(address, secret) as made:
        yield made
