"""Requests that something must be made ready for, beside the engine's loop.

Grammars are compiled here, and replicas are asked that have computed prompts.
"""

import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from penstock.core.errors import EngineError, EngineUnavailable, InvalidParameter, PenstockError
from penstock.core.request import Request

logger = logging.getLogger("penstock.engine")

THREADS = 2
# That wait for other replicas and compute nothing.
ASKING_THREADS = 8
MAX_WAITING = 64
# What compiles a grammar stops by itself, by a count of its steps; this is for a machine that is too busy for them.
MAX_SECONDS = 10.0


Work = Callable[[Request], None]


@dataclass(slots=True)
class _Preparation:
    """A request, and the work for it that is not done."""

    request: Request
    began: float
    left: set[Work]
    error: PenstockError | None = None

    def is_over(self, now: float) -> bool:
        """Whether there is nothing to wait for, or it has taken too long."""
        return self.error is not None or not self.left or now >= self.began + MAX_SECONDS


class Preparations:
    """Requests on their way to the scheduler.

    Attributes:
        waiting: those that are on their way, by their ids; changed on the caller's thread only.
    """

    def __init__(self, compile_grammar: Work, find: Work, wake: Callable[[], None]) -> None:
        """`compile_grammar` raises PenstockError where that is impossible; `find` asks a replica for a prompt's blocks.

        `wake` says that there is a request to take. All are called on other threads, the first two beside each other.
        """
        self._compile, self._find = compile_grammar, find
        self._wake = wake
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="prepare")
        self._asking = ThreadPoolExecutor(ASKING_THREADS, thread_name_prefix="ask")
        self._lock = threading.Lock()
        self.waiting: dict[int, _Preparation] = {}

    def begin(self, request: Request, now: float) -> None:
        """Start with a request; raises EngineUnavailable where too many grammars are waiting already."""
        compiles = request.sampling.grammar is not None
        left = ({self._compile} if compiles else set()) | ({self._find} if request.offered_at else set())
        with self._lock:
            grammars = sum(item.request.sampling.grammar is not None for item in self.waiting.values())
            if compiles and grammars >= MAX_WAITING:
                raise EngineUnavailable("Too many grammars are being compiled; try again in a few seconds.")
            preparation = self.waiting[request.request_id] = _Preparation(request, now, {*left})
        for work in left:
            # Who waits for another replica keeps no grammar waiting.
            (self._threads if work == self._compile else self._asking).submit(self._work, preparation, work)

    def drop(self, request_id: int) -> None:
        """No client waits for this request any more."""
        with self._lock:
            self.waiting.pop(request_id, None)

    def take(self, now: float) -> list[tuple[Request, PenstockError | None, float]]:
        """Requests that are ready, or have failed, in the order in which they came, and how many seconds that took."""
        with self._lock:
            over = [item for item in self.waiting.values() if item.is_over(now)]
            for item in over:
                del self.waiting[item.request.request_id]
            return [(item.request, item.error or self._overdue(item), now - item.began) for item in over]

    def seconds_left(self, now: float) -> float | None:
        """Until the first deadline; None where nothing waits."""
        with self._lock:
            begins = [item.began for item in self.waiting.values()]
        return max(0.0, min(begins) + MAX_SECONDS - now) if begins else None

    def _overdue(self, item: _Preparation) -> PenstockError | None:
        """Why one fails whose grammar is not ready in time; what no other replica has told, is computed here."""
        grammar = item.request.sampling.grammar
        if grammar is None or self._compile not in item.left:
            return None
        return InvalidParameter(grammar.param, f"could not be compiled within {MAX_SECONDS:.0f} s; make it simpler.")

    def _work(self, preparation: _Preparation, work: Work) -> None:
        try:
            with self._lock:
                dropped = preparation.request.request_id not in self.waiting
            if not dropped:
                work(preparation.request)
        except PenstockError as error:
            preparation.error = error
        except Exception as error:
            logger.exception("a request could not be prepared")
            preparation.error = EngineError(f"The request could not be prepared ({type(error).__name__}); see the log.")
        with self._lock:
            preparation.left.discard(work)
        self._wake()
