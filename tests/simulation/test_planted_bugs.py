"""The simulation is worth what it finds: each bug that is planted here is found within so many seeds."""

import asyncio
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import pytest

from penstock.access.admission import AdmissionControl, Ticket
from penstock.api.anthropic.writer import MessagesWriter
from penstock.api.generation import GenerationResponse
from penstock.api.openai.writer import ResponseWriter
from penstock.api.service import Service
from penstock.cache.groups import TokenGroup
from penstock.cache.manager import KVCache
from penstock.cache.prefix import PrefixIndex
from penstock.core.errors import Overloaded
from penstock.engine.client import Engine
from penstock.engine.outputs import RequestState, _SampleState
from penstock.engine.process import EngineProcess
from penstock.engine.record import Record
from penstock.scheduler.ends import Ends
from penstock.scheduler.scheduler import Scheduler
from penstock.server.health import HealthApi
from support.endings import finish_of
from support.world import run_world
from support.world_engine import Broken

MOST_SEEDS = 60

Plant = Callable[[pytest.MonkeyPatch], None]


def leaked_block_on_abort(patch: pytest.MonkeyPatch) -> None:
    """An aborted sequence keeps a reference to its first block."""
    finish = Ends.finish

    def leak(self: Ends, sequence: Any, gained: Any) -> Any:
        held = [slot for table in sequence.blocks.tables for slot in table.held()]
        if finish_of(gained) == "abort" and held:
            self._holding._cache.pool.share(held[0])
        return finish(self, sequence, gained)

    patch.setattr(Ends, "finish", leak)


def blocks_published_when_planned(patch: pytest.MonkeyPatch) -> None:
    """A prompt's blocks can be hit before they have been computed."""
    add_row = Scheduler._add_row

    def early(self: Scheduler, sequence: Any, *arguments: Any) -> None:
        add_row(self, sequence, *arguments)
        known = min(sequence.reserved, len(sequence.tokens))
        self.cache.publish(sequence.blocks, sequence.tokens, known)

    patch.setattr(Scheduler, "_add_row", early)


def lost_terminal_event(patch: pytest.MonkeyPatch) -> None:
    """Of two samples that end in one step, the second is not told of."""
    commit = Scheduler.commit

    def lose(self: Scheduler, *arguments: Any) -> Any:
        outputs = commit(self, *arguments)
        ends = [output for output in outputs if finish_of(output.gained) is not None]
        return [output for output in outputs if output not in ends[1:2]]

    patch.setattr(Scheduler, "commit", lose)


def stale_table_after_preemption(patch: pytest.MonkeyPatch) -> None:
    """The executor is not told of the blocks that a sequence gets when it comes back."""
    free = KVCache.free

    def keep_sent(self: KVCache, blocks: Any, *, until: int | None) -> None:
        sent = [table.sent for table in blocks.tables]
        free(self, blocks, until=until)
        for table, known in zip(blocks.tables, sent, strict=True):
            table.sent = known

    def never_behind(self: KVCache, blocks: Any) -> Any:
        for table in blocks.tables:
            table.sent = min(table.sent, len(table.slots))
        return take(self, blocks)

    take = KVCache.take_updates
    patch.setattr(KVCache, "free", keep_sent)
    patch.setattr(KVCache, "take_updates", never_behind)


def window_released_too_early(patch: pytest.MonkeyPatch) -> None:
    """A window is taken to be one block shorter than it is."""
    needed = TokenGroup._first_needed
    patch.setattr(
        TokenGroup,
        "_first_needed",
        lambda self, position: needed(self, position) + (self._window is not None and position >= self._window),
    )


def collision_taken_for_a_hit(patch: pytest.MonkeyPatch) -> None:
    """A prefix is found by its key alone."""
    patch.setattr(PrefixIndex, "_adopt", lambda self, chain, index, entry: True)


def salt_ignored(patch: pytest.MonkeyPatch) -> None:
    """Prefixes are shared across salts."""
    begin = KVCache.open
    patch.setattr(KVCache, "open", lambda self, sequence, salt, **others: begin(self, sequence, "", **others))


def tokens_given_twice(patch: pytest.MonkeyPatch) -> None:
    """After a restart, what was given already is given again."""
    patch.setattr(_SampleState, "unseen", lambda self, event: event)


def never_begun_again(patch: pytest.MonkeyPatch) -> None:
    """After a restart, the client goes on as if the next engine went on where the last one ended."""
    patch.setattr(RequestState, "begin_again", lambda self, request: setattr(self, "request", request))


def suspects_together(patch: pytest.MonkeyPatch) -> None:
    """Requests that two engines have not survived are computed beside each other."""
    init = Engine.__init__

    class Open:
        async def __aenter__(self) -> None:
            pass

        async def __aexit__(self, *error: object) -> None:
            pass

    def unlocked(self: Engine, *arguments: Any) -> None:
        init(self, *arguments)
        self._alone = Open()  # type: ignore[assignment]

    patch.setattr(Engine, "__init__", unlocked)


def refused_and_counted(patch: pytest.MonkeyPatch) -> None:
    """A request that admission refuses is counted as one that waits, for ever."""
    check = AdmissionControl._check_memory

    def count(self: AdmissionControl, ticket: Ticket, load: Any) -> None:
        try:
            check(self, ticket, load)
        except Overloaded:
            self._count(ticket.request.priority, len(ticket.request.prompts), sum(ticket.request.prompts))
            raise

    patch.setattr(AdmissionControl, "_check_memory", count)


def promised_to_who_has_gone(patch: pytest.MonkeyPatch) -> None:
    """Blocks that were promised to a request whose client leaves stay promised."""
    leave = GenerationResponse._leave

    def forget(self: GenerationResponse, outcome: Any) -> None:
        if outcome == "cancelled":
            self._admitted._ticket.promised = 0
        leave(self, outcome)

    patch.setattr(GenerationResponse, "_leave", forget)


def deadline_forgotten(patch: pytest.MonkeyPatch) -> None:
    """A request that another engine computes has all the time in the world."""
    timers: ContextVar[asyncio.Timeout | None] = ContextVar("timers", default=None)
    timeout_at, submit_again = asyncio.timeout_at, Engine._submit_again

    def remember(when: float | None) -> asyncio.Timeout:
        timer = timeout_at(when)
        timers.set(timer)
        return timer

    async def forget(self: Engine, waiter: Any) -> Any:
        timer = timers.get()
        if timer is not None:
            timer.reschedule(None)
        return await submit_again(self, waiter)

    patch.setattr(asyncio, "timeout_at", remember)
    patch.setattr(Engine, "_submit_again", forget)


def deadline_too_early(patch: pytest.MonkeyPatch) -> None:
    """Time is counted from the first byte of the server's life."""
    deadline = Service._deadline
    patch.setattr(Service, "_deadline", lambda self, job, arrived: deadline(self, job, 0.0))


def two_ends(patch: pytest.MonkeyPatch) -> None:
    """A stream that fails is ended as if it had not, too."""
    failed = ResponseWriter.failed
    patch.setattr(ResponseWriter, "failed", lambda self, error: failed(self, error) + self.end())


def no_end(patch: pytest.MonkeyPatch) -> None:
    """What has been written of a stream is its end where its time runs out."""
    patch.setattr(MessagesWriter, "failed", lambda self, error: b"")
    patch.setattr(ResponseWriter, "failed", lambda self, error: b"")


def stream_left_running(patch: pytest.MonkeyPatch) -> None:
    """The engine goes on with what a client has left."""

    def stay(self: EngineProcess, waiter: Any) -> None:
        self._waiters.pop(waiter.state.request.request_id, None)

    patch.setattr(EngineProcess, "leave", stay)


def ready_without_an_engine(patch: pytest.MonkeyPatch) -> None:
    """The server is ready while its engine is being started again."""
    patch.setattr(HealthApi, "ready", HealthApi.live)


def let_in_while_it_ends(patch: pytest.MonkeyPatch) -> None:
    """A server that ends does not tell what is left."""
    patch.setattr(GenerationResponse, "end_with", lambda self, error: None)


def queued_ones_blamed(patch: pytest.MonkeyPatch) -> None:
    """Whatever an engine was given counts as what it computed when it ended."""
    patch.setattr(Record, "suspects", lambda self: None)


def nobody_blamed(patch: pytest.MonkeyPatch) -> None:
    """An engine is taken to have computed nothing when it ended."""
    patch.setattr(Record, "suspects", lambda self: frozenset())


PLANTS = [
    leaked_block_on_abort,
    blocks_published_when_planned,
    lost_terminal_event,
    stale_table_after_preemption,
    window_released_too_early,
    collision_taken_for_a_hit,
    salt_ignored,
    tokens_given_twice,
    never_begun_again,
    suspects_together,
    queued_ones_blamed,
    nobody_blamed,
    refused_and_counted,
    promised_to_who_has_gone,
    deadline_forgotten,
    deadline_too_early,
    two_ends,
    no_end,
    stream_left_running,
    ready_without_an_engine,
    let_in_while_it_ends,
]


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.__name__)
def test_a_planted_bug_is_found(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    for seed in range(MOST_SEEDS):
        try:
            run_world(seed)
        except (AssertionError, Broken) as error:
            assert f"--first-seed {seed}" in "".join(error.__notes__)
            return
    pytest.fail(f"{plant.__name__} was not found in {MOST_SEEDS} worlds")
