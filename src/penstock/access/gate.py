"""What stands between requests and what computes them: admission with its clock, for one server."""

import asyncio
import hashlib
from collections import OrderedDict
from typing import NamedTuple, Protocol

from penstock.access.admission import AdmissionControl, AdmissionRequest, Ticket
from penstock.core.errors import Overloaded
from penstock.core.events import LoadSnapshot

# Requests that were refused after their tokens were counted: the number that is remembered, and the most bytes and
# prompts of such a request.
_MOST_KNOWN = 4096
_MOST_KNOWN_BYTES, _MOST_KNOWN_PROMPTS = 64 * 1024, 8


class Loaded(Protocol):
    """What computes requests, as admission sees it."""

    @property
    def load(self) -> LoadSnapshot:
        """The newest snapshot of what waits and runs there."""


class UnparsedRequest(NamedTuple):
    """A request that was read and not yet parsed: whose it is, and what it asks of whom.

    Attributes:
        prioritized: whether it may ask for a priority, which is known once it is parsed.
    """

    tenant: str
    endpoint: str
    body: bytes
    prioritized: bool = False

    def digest(self) -> bytes | None:
        """The same for the same request, None for one that is too long to be known again."""
        if len(self.body) > _MOST_KNOWN_BYTES:
            return None
        digest = hashlib.blake2b(f"{self.endpoint} {self.tenant}\n".encode(), digest_size=16)
        digest.update(self.body)
        return digest.digest()


class Pass:
    """An admitted job, to be told of what comes of it."""

    def __init__(self, gate: "Gate", ticket: Ticket) -> None:
        self._gate = gate
        self._ticket = ticket

    def gained(self, sample: int, tokens: int, *, ended: bool) -> None:
        """A sample of the job has more tokens, or has ended."""
        gate = self._gate
        gate.admission.gained(self._ticket, sample, tokens, gate.engine.load, _now(), ended=ended)

    def leave(self) -> None:
        """The engine has nothing more to do for it; may be said more than once."""
        self._gate.admission.leave(self._ticket, self._gate.engine.load, _now())


class Gate:
    """Lets requests in to one engine, or refuses them."""

    def __init__(self, engine: Loaded, admission: AdmissionControl) -> None:
        self.engine = engine
        self.admission = admission
        # A client sends a refused request again. Its tokens need not be counted again to refuse it again.
        self._known: OrderedDict[bytes, AdmissionRequest] = OrderedDict()

    def check(self) -> None:
        """Raise Overloaded where whatever comes is refused: nothing of it has to be read."""
        self.admission.check(self.engine.load, _now())

    def check_asked(self, asked: UnparsedRequest) -> bool:
        """The same for a request that was read; False where its priority has to be known first."""
        load, now = self.engine.load, _now()
        digest = asked.digest() if self._known else None
        known = None if digest is None else self._known.get(digest)
        if known is not None:
            self.admission.shed(known.priority, load, now)
            self.admission.consider(known, load, now)
            return True
        if asked.prioritized:
            return False
        self.admission.shed(0, load, now)
        return True

    def admit(self, asked: UnparsedRequest, request: AdmissionRequest, *, checked: bool) -> Pass:
        """Take a job on, or raise Overloaded; `checked` is what `check_asked` has said."""
        load, now = self.engine.load, _now()
        if not checked:
            self.admission.shed(request.priority, load, now)
        try:
            return Pass(self, self.admission.admit(request, load, now))
        except Overloaded:
            self._remember(asked, request)
            raise

    def _remember(self, asked: UnparsedRequest, request: AdmissionRequest) -> None:
        digest = asked.digest()
        if digest is not None and len(request.prompts) <= _MOST_KNOWN_PROMPTS:
            self._known[digest] = request
            if len(self._known) > _MOST_KNOWN:
                self._known.popitem(last=False)


def _now() -> float:
    """Seconds on the event loop's clock, which all of the server goes by."""
    return asyncio.get_running_loop().time()
