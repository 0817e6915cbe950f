"""The one file of a multipart form, as a stream of bytes."""

from collections.abc import AsyncIterator

from anyio import to_thread
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from sparse_ncp.worker.errors import BadTensor

FIELD = "file"
# A form may have other fields, which are ignored; a library sends a few, an attacker thousands.
MAX_PARTS = 16
# Bytes of the form beside the file: boundaries, headers of parts, other fields.
MAX_AROUND = 64 << 10
# Bytes parsed at once, in a thread, because the parser may look at every byte.
CHUNK = 64 << 10


class FormFile:
    """The bytes of the field `file`, yielded in pieces; `filename` is known from the first piece on."""

    def __init__(self, content_type: str, stream: AsyncIterator[bytes]) -> None:
        self.filename: str | None = None
        self._stream = stream
        self._header, self._value = b"", b""
        self._inside = self._found = self._ended = False
        self._parts = self._around = 0
        self._chunks: list[bytes] = []
        self._parser = self._make_parser(content_type)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        unparsed = bytearray()
        async for chunk in self._stream:
            unparsed += chunk
            if len(unparsed) >= CHUNK:
                for piece in await to_thread.run_sync(self._parse, bytes(unparsed)):
                    yield piece
                unparsed.clear()
        for piece in await to_thread.run_sync(self._parse, bytes(unparsed)):
            yield piece
        if not self._found:
            raise BadTensor(FIELD, "is missing from the form", f"send the .npy file as field {FIELD!r}")
        if not self._ended:
            raise BadTensor("body", "the multipart form ends too early", "send it again, to its closing boundary")

    def _parse(self, content: bytes) -> list[bytes]:
        """Return the part of the file in the next bytes of the form."""
        for start in range(0, len(content), CHUNK):
            chunk = content[start : start + CHUNK]
            try:
                self._parser.write(chunk)
            except FormParserError as error:
                raise BadTensor("body", f"is not a multipart form: {error}", "send the raw bytes instead") from error
            self._around += len(chunk)
            if self._around > MAX_AROUND:
                problem = f"has more than {MAX_AROUND} bytes beside the field {FIELD!r}"
                raise BadTensor("body", problem, "send the .npy file as the only field")
        ready, self._chunks = self._chunks, []
        return ready

    def _make_parser(self, content_type: str) -> MultipartParser:
        _, options = parse_options_header(content_type)
        if b"boundary" not in options:
            raise BadTensor("Content-Type", "names no boundary", "let the HTTP library write this header")
        callbacks = {
            "on_part_begin": self.on_part_begin,
            "on_header_field": self.on_header_field,
            "on_header_value": self.on_header_value,
            "on_header_end": self.on_header_end,
            "on_part_data": self.on_part_data,
            "on_part_end": self.on_part_end,
            "on_end": self.on_end,
        }
        try:
            return MultipartParser(options[b"boundary"], callbacks)  # type: ignore[arg-type]
        except FormParserError as error:
            remedy = "let the HTTP library write this header"
            raise BadTensor("Content-Type", f"names a boundary that cannot be used: {error}", remedy) from error

    # Called by the parser

    def on_part_begin(self) -> None:
        self._parts += 1
        if self._parts > MAX_PARTS:
            raise BadTensor("body", f"has more than {MAX_PARTS} parts", "send the .npy file as the only field")

    def on_header_field(self, chunk: bytes, start: int, end: int) -> None:
        self._header += chunk[start:end]

    def on_header_value(self, chunk: bytes, start: int, end: int) -> None:
        self._value += chunk[start:end]

    def on_header_end(self) -> None:
        if self._header.lower() == b"content-disposition":
            _, options = parse_options_header(self._value)
            self._inside = options.get(b"name") == FIELD.encode()
            if self._inside:
                if self._found:
                    raise BadTensor(FIELD, "appears twice in the form", "send one tensor per request")
                self._found = True
                self.filename = options.get(b"filename", b"").decode(errors="replace") or None
        self._header = self._value = b""

    def on_part_data(self, chunk: bytes, start: int, end: int) -> None:
        if self._inside:
            self._chunks.append(chunk[start:end])
            self._around -= end - start

    def on_part_end(self) -> None:
        self._inside = False

    def on_end(self) -> None:
        self._ended = True
