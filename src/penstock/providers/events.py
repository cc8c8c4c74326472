"""Server-sent events (WHATWG HTML, section 9.2.6) as far as providers use them: the data of each."""


class EventReader:
    """Cuts a stream of bytes into the data of its events."""

    def __init__(self, most: int = 4 * 1024 * 1024) -> None:
        """`most` bytes are held of an event."""
        self._held = bytearray()
        self._data: list[bytes] = []
        self._most = most

    def take(self, piece: bytes) -> list[bytes]:
        """The data of those events that are whole by now. Raises ValueError for one that is too long."""
        self._held += piece.replace(b"\r\n", b"\n")
        found = []
        *lines, rest = self._held.split(b"\n")
        self._held = bytearray(rest)
        for line in lines:
            # A line break may have come in two parts.
            text = bytes(line).removesuffix(b"\r")
            if text.startswith(b"data:"):
                self._data.append(text[5:].removeprefix(b" "))
            elif not text and self._data:
                found.append(b"\n".join(self._data))
                self._data = []
        if len(self._held) + sum(map(len, self._data)) > self._most:
            raise ValueError(f"an event of it is longer than {self._most} bytes")
        return found
