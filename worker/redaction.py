"""The last guard before a line is written: whatever looks like a secret is not in it."""

import re

HIDDEN = "***"
SECRETS = (
    # All that stands before the host of an address, since a password may contain anything but a space.
    (re.compile(r"(?<=://)[^\s]*@"), f"{HIDDEN}@"),
    (re.compile(r"(?i)\b(bearer|basic)\s+[^\s'\",]+"), rf"\1 {HIDDEN}"),
    (re.compile(r"\b(ncp_)[A-Za-z0-9_-]{16,}"), rf"\1{HIDDEN}"),
)


def redacted(text: str) -> str:
    """The text without passwords of addresses, without credentials of requests and without keys."""
    for pattern, hidden in SECRETS:
        text = pattern.sub(hidden, text)
    return text
