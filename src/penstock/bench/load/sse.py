"""Server-sent events, read strictly."""


class EventReader:
    """Cuts a stream into the data of its events, wherever its pieces are cut.

    Attributes:
        fault: what was not an event, if anything.
    """

    __slots__ = ("_rest", "fault")

    def __init__(self) -> None:
        self._rest = b""
        self.fault: str | None = None

    def feed(self, data: bytes) -> list[bytes]:
        """The data of all events that are whole now."""
        if self._rest:
            data = self._rest + data
        if b"\r" in data:
            # A carriage return at the end may be half of a line's end.
            held = b"\r" if data.endswith(b"\r") else b""
            data = data.removesuffix(held).replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        else:
            held = b""
        *events, self._rest = data.split(b"\n\n")
        self._rest += held
        found = []
        for event in events:
            # What nearly all servers send: one line.
            if event.startswith(b"data: ") and b"\n" not in event:
                found.append(event[6:])
            elif (payload := self._fields(event)) is not None:
                found.append(payload)
        return found

    def end(self) -> None:
        """The stream has ended; half an event is a fault."""
        if self._rest.strip(b"\r\n"):
            self._blame(self._rest)

    def _fields(self, event: bytes) -> bytes | None:
        lines = []
        for line in event.split(b"\n"):
            name, _, value = line.partition(b":")
            if name == b"data":
                lines.append(value.removeprefix(b" "))
            elif line and name not in (b"", b"event", b"id", b"retry"):
                self._blame(line)
        return b"\n".join(lines) if lines else None

    def _blame(self, text: bytes) -> None:
        self.fault = self.fault or text[:80].decode(errors="replace")
