"""SseReader: what a stream of server-sent events says, from its bytes as they come."""

from __future__ import annotations

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class SseReader:
    """The data of each event once its last byte has come, however the bytes were cut on their way.

    Lines end with CR LF, LF or CR; an event ends with an empty line, and one that has not ended when the stream does
    is none. Comments and every field but `data` are passed over. Bytes that are no UTF-8 become U+FFFD.
    """

    def __init__(self) -> None:
        self._line: list[bytes] = []  # pieces of the line that has not ended
        self._data: list[bytes] = []  # lines of the event that has not ended
        self._after_cr = False  # the last byte was one, so that a LF belongs to it
        self._at_start = True

    def feed(self, chunk: bytes) -> list[str]:
        """The data of every event that ends in this chunk."""
        if self._after_cr and chunk.startswith(b"\n"):
            chunk = chunk[1:]
            self._after_cr = False
        if not chunk:
            return []
        self._after_cr = chunk.endswith(b"\r")
        if b"\r" in chunk:
            chunk = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        first, *others = chunk.split(b"\n")
        self._line.append(first)
        if not others:
            return []
        lines = [b"".join(self._line), *others]
        self._line = [lines.pop()]
        if self._at_start:
            self._at_start = False
            lines[0] = lines[0].removeprefix(_BYTE_ORDER_MARK)
        return [event for line in lines if (event := self._take(line)) is not None]

    def _take(self, line: bytes) -> str | None:
        """The data of the event that this line ends, if it does."""
        if line:
            field, _, value = line.partition(b":")
            if field == b"data":
                self._data.append(value.removeprefix(b" "))
            return None
        if not self._data:
            return None
        event = b"\n".join(self._data).decode("utf-8", errors="replace")
        self._data = []
        return event
