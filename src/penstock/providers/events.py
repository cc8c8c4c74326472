"""Server-sent events (WHATWG HTML, section 9.2.6) as far as providers use them: the data of each."""


class EventReader:
    """Cuts a stream of bytes into the data of its events."""

    def __init__(self, most: int = 4 * 1024 * 1024) -> None:
        """`most` bytes are held of an event."""
        # Of the line that has not ended.
        self._line: list[bytes] = []
        self._data: list[bytes] = []
        self._size = 0
        self._most = most

    def take(self, piece: bytes) -> list[bytes]:
        """The data of those events that are whole by now. Raises ValueError for one that is too long."""
        found = []
        first, *others = piece.split(b"\n")
        self._hold(first, self._line)
        for rest in others:
            line = b"".join(self._line).removesuffix(b"\r")
            self._line.clear()
            if line.startswith(b"data:"):
                self._data.append(line[5:].removeprefix(b" "))
            elif not line:
                if self._data:
                    found.append(b"\n".join(self._data))
                self._data, self._size = [], 0
            self._hold(rest, self._line)
        return found

    def _hold(self, part: bytes, parts: list[bytes]) -> None:
        """Lines that are no data count, too, since they take as long to read."""
        self._size += len(part) + 1
        if self._size > self._most:
            raise ValueError(f"an event of it is longer than {self._most} bytes")
        if part:
            parts.append(part)
