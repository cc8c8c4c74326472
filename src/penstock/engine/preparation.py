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


@dataclass(slots=True)
class _Preparation:
    request: Request
    began: float
    done: bool = False
    error: PenstockError | None = None


class Preparations:
    """Requests on their way to the scheduler.

    Attributes:
        waiting: those that are on their way, by their ids; changed on the caller's thread only.
    """

    def __init__(self, prepare: Callable[[Request], None], wake: Callable[[], None]) -> None:
        """`prepare` makes ready what a request needs, or raises PenstockError; `wake` says that there is one to take.

        Both are called on other threads.
        """
        self._prepare = prepare
        self._wake = wake
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="prepare")
        self._asking = ThreadPoolExecutor(ASKING_THREADS, thread_name_prefix="ask")
        self._lock = threading.Lock()
        self.waiting: dict[int, _Preparation] = {}

    def begin(self, request: Request, now: float) -> None:
        """Start with a request; raises EngineUnavailable where too many grammars are waiting already."""
        compiles = request.sampling.grammar is not None
        with self._lock:
            grammars = sum(item.request.sampling.grammar is not None for item in self.waiting.values())
            if compiles and grammars >= MAX_WAITING:
                raise EngineUnavailable("Too many grammars are being compiled; try again in a few seconds.")
            preparation = self.waiting[request.request_id] = _Preparation(request, now)
        (self._threads if compiles else self._asking).submit(self._work, preparation)

    def drop(self, request_id: int) -> None:
        """No client waits for this request any more."""
        with self._lock:
            self.waiting.pop(request_id, None)

    def take(self, now: float) -> list[tuple[Request, PenstockError | None, float]]:
        """Requests that are ready, or have failed, in the order in which they came, and how many seconds that took."""
        with self._lock:
            over = [item for item in self.waiting.values() if item.done or now >= item.began + MAX_SECONDS]
            for item in over:
                del self.waiting[item.request.request_id]
        return [(item.request, item.error if item.done else _overdue(item.request), now - item.began) for item in over]

    def seconds_left(self, now: float) -> float | None:
        """Until the first deadline; None where nothing waits."""
        with self._lock:
            begins = [item.began for item in self.waiting.values()]
        return max(0.0, min(begins) + MAX_SECONDS - now) if begins else None

    def _work(self, preparation: _Preparation) -> None:
        try:
            with self._lock:
                dropped = preparation.request.request_id not in self.waiting
            if not dropped:
                self._prepare(preparation.request)
        except PenstockError as error:
            preparation.error = error
        except Exception as error:
            logger.exception("a request could not be prepared")
            preparation.error = EngineError(f"The request could not be prepared ({type(error).__name__}); see the log.")
        with self._lock:
            preparation.done = True
        self._wake()


def _overdue(request: Request) -> PenstockError | None:
    """Why a request fails that is not ready in time; one without a grammar does not: its prompt is computed here."""
    grammar = request.sampling.grammar
    if grammar is None:
        return None
    return InvalidParameter(grammar.param, f"could not be compiled within {MAX_SECONDS:.0f} s; make it simpler.")
