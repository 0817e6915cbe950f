"""Ways to send the same bytes: whole, in pieces, as a form, with wrong lengths and digests."""

import base64
import hashlib
import random
from collections.abc import Callable
from dataclasses import dataclass

Random = random.Random
PATH = "/v1/tensors"
NAMES = (
    "",
    "?name=a",
    "?name=" + "a" * 200,
    "?name=" + "a" * 201,
    "?name=%00",
    "?name=%F0%9F%92%A9",
    "?name=a&name=b",
    "?x=1",
)
BOUNDARIES = ("b", "a-b_c", "x" * 70, "'odd'", "x" * 300)


@dataclass(frozen=True)
class Sent:
    """A request as raw bytes; `tensor` is what the server must have read, or None if that is open."""

    wire: bytes
    tensor: bytes | None
    closes: bool  # the connection cannot be used again


def sent(content: bytes, choice: Random) -> Sent:
    return choice.choice(WAYS)(content, choice)


def _head(*headers: str, choice: Random) -> bytes:
    lines = [
        f"POST {PATH}{choice.choice(NAMES) if choice.random() < 0.2 else ''} HTTP/1.1",
        "Host: 127.0.0.1",
        *headers,
    ]
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


def _raw(content: bytes, choice: Random) -> Sent:
    return Sent(_head(f"Content-Length: {len(content)}", choice=choice) + content, content, False)


def _chunked(content: bytes, choice: Random) -> Sent:
    body, rest = b"", content
    while rest:
        piece, rest = rest[: (size := choice.choice((1, 7, 64, 1000, 70_000)))], rest[size:]
        body += f"{len(piece):x}\r\n".encode() + piece + b"\r\n"
    return Sent(_head("Transfer-Encoding: chunked", choice=choice) + body + b"0\r\n\r\n", content, False)


def _bad_chunks(content: bytes, choice: Random) -> Sent:
    declared = choice.choice((b"zz", b"-5", b"ffffffffffffffffff", b"", b"5;x=1"))
    wire = _head("Transfer-Encoding: chunked", choice=choice) + declared + b"\r\n" + content + b"\r\n0\r\n\r\n"
    return Sent(wire, None, True)


def _digest(content: bytes, choice: Random) -> Sent:
    right = base64.b64encode(hashlib.sha256(content).digest()).decode()
    wrong = base64.b64encode(bytes(32)).decode()
    declared = choice.choice(
        (f"sha-256=:{right}:", f"sha-256=:{wrong}:", "sha-256=:%%:", "sha-256=", "md5=:AA==:", f"sha-256=:{right}")
    )
    fits = declared in (f"sha-256=:{right}:", "md5=:AA==:")
    wire = _head(f"Content-Length: {len(content)}", f"Repr-Digest: {declared}", choice=choice) + content
    return Sent(wire, content if fits else None, False)


def _typed(content: bytes, choice: Random) -> Sent:
    kinds = (
        "application/octet-stream",
        "text/plain",
        "application/json",
        "multipart/mixed",
        "multipart/form-data",
        "é",
        "",
    )
    wire = _head(f"Content-Length: {len(content)}", f"Content-Type: {choice.choice(kinds)}", choice=choice) + content
    return Sent(wire, None, False)


def _encoded(content: bytes, choice: Random) -> Sent:
    coding = choice.choice(("gzip", "br", "identity", "x"))
    wire = _head(f"Content-Length: {len(content)}", f"Content-Encoding: {coding}", choice=choice) + content
    return Sent(wire, content if coding == "identity" else None, False)


def _short(content: bytes, choice: Random) -> Sent:
    """Send less than was declared, and nothing after it."""
    declared = len(content) + choice.choice((1, 100, 10**6, 10**12, 10**19))
    return Sent(_head(f"Content-Length: {declared}", choice=choice) + content, None, True)


def _bad_length(content: bytes, choice: Random) -> Sent:
    declared = choice.choice(("-1", "abc", "", "1e3", "0x10", "5, 5", "9" * 40))
    return Sent(_head(f"Content-Length: {declared}", choice=choice) + content, None, True)


def _form(content: bytes, choice: Random) -> Sent:
    return _as_form(content, choice, "file", sound=True)


def _odd_form(content: bytes, choice: Random) -> Sent:
    """Use another field, two files, no closing boundary, a huge part header, or a wrong boundary."""
    return _as_form(content, choice, choice.choice(("file", "files", "", "é")), sound=False)


def _as_form(content: bytes, choice: Random, field: str, sound: bool) -> Sent:
    boundary = choice.choice(BOUNDARIES[:3]) if sound else choice.choice(BOUNDARIES)
    disposition = (
        f'Content-Disposition: form-data; name="{field}"; filename="{choice.choice(("a.npy", "é", "", "../x"))}"'
    )
    part = f"--{boundary}\r\n{disposition}\r\n\r\n".encode() + content + b"\r\n"
    body = part + f"--{boundary}--\r\n".encode()
    if not sound:
        body = choice.choice(
            (body, part, part + body, b"X-Long: " + b"a" * 50_000 + body, body[2:], content, b"--\r\n" + body)
        )
    named = choice.choice((boundary, boundary, "other", "")) if not sound else boundary
    head = _head(f"Content-Length: {len(body)}", f"Content-Type: multipart/form-data; boundary={named}", choice=choice)
    clean = sound and f"\r\n--{boundary}".encode() not in content
    return Sent(head + body, content if clean else None, False)


Way = Callable[[bytes, Random], Sent]
WAYS: tuple[Way, ...] = (
    *(_raw,) * 6, *(_chunked,) * 4, *(_form,) * 3, *(_odd_form,) * 2, _digest, _typed, _encoded, _short,
    _bad_chunks, _bad_length,
)  # fmt: skip
