"""The engine's process in a simulated world: the worker's own loop, one turn at a time, until it is made to fail."""

import random
from typing import TYPE_CHECKING

import msgspec

from penstock.cache.pool import BlockPool
from penstock.core.config import CacheConfig
from penstock.core.errors import PenstockError
from penstock.core.events import SampleOutput
from penstock.core.plan import StepPlan, StepResult
from penstock.engine.contention import CpuWait
from penstock.engine.core import EngineCore
from penstock.engine.messages import (
    PROTOCOL_VERSION,
    Failed,
    FrameBuffer,
    FromEngine,
    Heartbeat,
    Progress,
    Ready,
    Start,
    StepOutputs,
    Submit,
    ToEngine,
    encode_frame,
    to_engine_decoder,
    unpack_outputs,
)
from penstock.engine.process import EngineProcess
from penstock.engine.record import RECORD_BYTES, Record
from penstock.engine.worker import _Loop
from penstock.scheduler.build import build_scheduler
from penstock.scheduler.scheduler import Scheduler
from support.scripted import ScriptedExecutor
from support.scripted_rows import slots_written
from support.world_jobs import Scenario, short_key
from support.world_manners import language

if TYPE_CHECKING:
    from support.world import World

HEARTBEAT = 1.0


class Hang(BaseException):
    """The process computes no more, without ending."""


class TurnOver(BaseException):
    """The worker's loop has come round once."""


class Death(BaseException):
    """The process ends here, without another word."""


class Broken(BaseException):
    """A promise is broken; nothing may take this for one more failure of an engine."""


class TightPool(BlockPool):
    """A pool that refuses `withheld` of its blocks, and fails altogether when it is `starved`."""

    withheld = 0
    starved = False

    @property
    def num_available(self) -> int:
        return max(0, super().num_available - self.withheld)

    @property
    def num_spare(self) -> int:
        return max(0, super().num_spare - self.withheld)

    def take(self, count: int, width: int = 1) -> list[int]:
        if self.starved and count:
            raise MemoryError
        return super().take(count, width)


class _Done:
    def __init__(self, answer: StepResult) -> None:
        self._answer = answer

    def result(self) -> StepResult:
        return self._answer


class WatchedExecutor:
    """The scripted executor, with whatever it objects to made known, and failures on demand.

    Attributes:
        fails: whether the next step raises. `end` is raised instead, where it is set.
        computing: the requests of the step that is computed.
    """

    def __init__(self, scripted: ScriptedExecutor, scheduler: Scheduler, world: "World") -> None:
        self.scripted = scripted
        self.fails = False
        self.end: BaseException | None = None
        self.computing: frozenset[int] | None = None
        self._scheduler = scheduler
        self._world = world

    def use_idle_time(self) -> None:
        """There is nothing that could wait."""

    def execute(self, plan: StepPlan) -> _Done:
        requests = [self._scheduler._sequences[row.sequence].request for row in plan.rows]
        self.computing = frozenset(request.request_id for request in requests)
        self._world.begun(requests)
        if self.end is not None:
            raise self.end
        try:
            self._check_writes(plan)
            answer = self.scripted.execute(plan)
        except (AssertionError, LookupError) as error:
            raise Broken(str(error)) from error
        self._world.note(msgspec.msgpack.encode(plan))
        self._world.computed(plan)
        if self.fails:
            raise RuntimeError("the executor was made to fail")
        return _Done(answer)

    def _check_writes(self, plan: StepPlan) -> None:
        cache = self._scheduler.cache
        for row in plan.rows:
            for slot in slots_written(cache.spec, self._scheduler._sequences[row.sequence].blocks, row):
                assert cache.pool.is_writable(slot), f"slot {slot} is written but shared or published"


class NoWait(CpuWait):
    """Nobody waits for a processor, but for a `share` of each step where there is one."""

    def __init__(self, share: float = 0.0) -> None:
        self._share = share
        self._began = 0.0

    def begin_step(self, now: float) -> None:
        self._began = now

    def since_last(self, now: float) -> float:
        return self._share * (now - self._began)


def build_core(plan: Scenario, world: "World") -> tuple[EngineCore, WatchedExecutor, TightPool]:
    """A core with nothing in it."""
    memory = CacheConfig(plan.spec, plan.num_blocks, prefix_caching=plan.prefix_caching, kept_share=plan.kept_share)
    key_of = short_key if plan.short_keys else None
    scheduler = build_scheduler(plan.config, memory, key_of=key_of, pool=TightPool)
    pool = scheduler.cache.pool
    assert isinstance(pool, TightPool)
    executor = WatchedExecutor(ScriptedExecutor(plan.spec, plan.num_blocks), scheduler, world)
    core = EngineCore(scheduler, executor, world.grammars)
    core.clock = lambda: world.loop.now
    return core, executor, pool


class Worker:
    """One process of the engine: to `EngineProcess` its process and its transport, to the worker's loop its connection.

    Attributes:
        core: None until it has been built.
        hung: whether it computes no more without having ended.
        submitted: requests that it was given, by id. `closed` are those whose every sample has ended.
    """

    def __init__(self, world: "World", number: int) -> None:
        self.pid = number
        self.world = world
        self.protocol: EngineProcess | None = None
        self.core: EngineCore | None = None
        self.hung = False
        self.submitted: dict[int, int] = {}
        self.closed: set[int] = set()
        self.inbox: list[ToEngine] = []
        self.memory = bytearray(RECORD_BYTES)
        self._record = Record(self.memory)
        self._status: int | None = None
        self._frames = FrameBuffer()
        self._scheduled = False
        self._received = False
        self._silenced = False
        # Whether the next error of its loop was brought about.
        self._doomed = False
        self._ended: dict[int, set[int]] = {}
        self._rng = random.Random(world.plan.seed * 1000 + number)
        self._cutting = random.Random(f"cuts {world.plan.seed} {number}")
        # Where it hangs, a signal may have stopped it.
        self._signalled = random.Random(f"signals {world.plan.seed} {number}").random() < 0.5

    # What the engine's client does with the process and its socket.

    def poll(self) -> int | None:
        return self._status

    def kill(self) -> None:
        if self._status is None and not self.hung:
            self.world.broken(Broken("an engine that was not stuck was killed"))
        self.die(-9)

    def write(self, frame: bytes) -> None:
        if self._status is not None:
            return
        for body in self._frames.feed(frame):
            message = to_engine_decoder.decode(body)
            if isinstance(message, Start):
                self._start()
            else:
                self.inbox.append(message)
                self._soon()

    def close(self) -> None:
        self.die(0)

    def die(self, status: int) -> None:
        """End, with whatever was sent still on its way."""
        if self._status is None:
            self._status = status
            assert self.protocol is not None
            self.world.expect_ready(self, ready=False)
            self.world.loop.call_soon(self._lost)

    def _lost(self) -> None:
        assert self.protocol is not None
        self.world.interrupted(self)
        self.protocol.connection_lost(None)

    @property
    def stopped(self) -> bool:
        """Whether a signal has stopped it."""
        return self.hung and self._signalled and self._status is None

    @property
    def computing(self) -> frozenset[int] | None:
        """Requests that were computed at its end; None where that was between two steps."""
        return self.executor.computing if self.core is not None else None

    @property
    def serves(self) -> bool:
        """Whether requests that come now are computed."""
        return self._status is None and not self.hung and self.core is not None

    # The process's own life.

    def _start(self) -> None:
        seconds = self._rng.random() * 3.0
        self.world.loop.call_later(seconds / 2, self.send, Progress(1, 2))
        self.world.loop.call_later(seconds, self._begin)

    def _begin(self) -> None:
        if self._status is not None:
            return
        faults, plan = self.world.plan.faults, self.world.plan
        # The first start is the user's own to fail.
        if self.pid and self._rng.random() < faults.stillborn and self.world.may_die():
            way = self._rng.randrange(3)
            if way == 0:
                self.send(Failed("insufficient_memory", "the engine was made to fail at its start"))
            self.hung = way == 1
            if way != 1:
                self.die(1)
            return
        self.core, self.executor, self.pool = build_core(plan, self.world)
        vocabulary = language()[0].vocab_size
        self.send(Ready(PROTOCOL_VERSION, self.core.scheduler.limits, vocabulary, [], [], self.world.work))
        self._beat()
        self.world.expect_ready(self, ready=True)

    def _beat(self) -> None:
        if self._status is None and self.core is not None:
            steps = self.core.scheduler.snapshot().step
            if not self.stopped:
                self.send(Heartbeat(steps, self.hung or self.core.has_work))
            self.world.loop.call_later(HEARTBEAT, self._beat)

    def _soon(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self.world.loop.call_later(self._rng.choice(self.world.plan.turns), self._turn)

    def _turn(self) -> None:
        """Once round the worker's loop."""
        self._scheduled = False
        if self._status is not None or self.hung or self.core is None:
            return
        try:
            self._misfortune(self.core)
            if self.hung:
                return
            self._received = False
            _Loop(self, self.core, self._record, self.world.cpu_wait).run()  # type: ignore[arg-type]
        except TurnOver:
            # It is still where it waits for messages, or looks for some.
            self.memory[:] = self._left
        except Death:
            self.die(70)
            return
        except Hang:
            self.hung = True
            return
        except Broken as error:
            self.world.broken(error)
            return
        except (PenstockError, MemoryError) as error:
            # The rest is what `run_worker` does.
            if not self._doomed:
                self.world.broken(error)
                return
            self.world.interrupted(self)
            self.send(Failed("engine_error", str(error)))
            self.die(1)
            return
        except Exception as error:
            self.world.broken(error)
            return
        try:
            self.world.check(self)
        except (AssertionError, RuntimeError) as error:
            self.world.broken(error)
        if self.core.has_work or self.inbox:
            self._soon()

    def _misfortune(self, core: EngineCore) -> None:
        """What goes wrong in the coming step, if anything does."""
        faults, rng = self.world.plan.faults, self._rng
        if rng.random() < faults.withheld:
            most = self.world.plan.num_blocks - self.world.largest_need
            self.pool.withheld = rng.choice([0, rng.randint(0, max(0, most))])
        sequences = list(core.scheduler._sequences.values())
        if sequences and rng.random() < faults.bad_rows:
            chosen = rng.choice(sequences)
            self.executor.scripted.failing.add(chosen.id)
            self.world.ill.add(chosen.request.sampling.seed)
        if not core.has_work:
            return
        for rate, happens in (
            (faults.killed, self._die_now),
            (faults.silenced, self._die_silently),
            (faults.raised, self._fail),
            (faults.starved, self._starve),
            (faults.hangs, self._hang),
        ):
            if rng.random() < rate and self.world.may_die():
                happens()
                return

    def _die_now(self) -> None:
        if self._rng.random() < 0.3:
            raise Death
        self.executor.end = Death()

    def _die_silently(self) -> None:
        self._silenced = True

    def _fail(self) -> None:
        self._doomed = self.executor.fails = True

    def _starve(self) -> None:
        self._doomed = self.pool.starved = True

    def _hang(self) -> None:
        if self._rng.random() < 0.3:
            self.hung = True
        else:
            self.executor.end = Hang()

    # What the worker's loop does with its connection.

    def receive(self, *, wait: bool, seconds: float | None = None) -> list[ToEngine]:
        if self._received:
            self._left = bytes(self.memory)
            raise TurnOver
        self._received = True
        messages, self.inbox = self.inbox, []
        for message in messages:
            if isinstance(message, Submit):
                request = message.request
                self.submitted[request.request_id] = request.sampling.n
                self.world.taken(self, request)
        return messages

    def wake(self) -> None:
        """Nothing is prepared beside the loop here."""

    def send(self, message: FromEngine) -> None:
        if self._status is not None:
            return
        if self._silenced and isinstance(message, StepOutputs):
            raise Death
        if isinstance(message, StepOutputs):
            self.executor.computing = None
            for event in unpack_outputs(message):
                self._account(event)
        frame = encode_frame(message)
        self.world.note(frame)
        # A generator of their own: what else happens should not depend on how long a message is.
        cuts = sorted(self._cutting.randrange(len(frame) + 1) for _ in range(self._cutting.choice([0, 0, 1, 2])))
        assert self.protocol is not None
        for first, last in zip([0, *cuts], [*cuts, len(frame)], strict=True):
            self.protocol.data_received(frame[first:last])

    def _account(self, event: SampleOutput) -> None:
        ended = self._ended.setdefault(event.request_id, set())
        if event.request_id not in self.submitted or event.sample_index in ended:
            raise Broken(f"sample {event.sample_index} of request {event.request_id} has an event after its last")
        if event.gained.ending is not None:
            ended.add(event.sample_index)
            if len(ended) == self.submitted[event.request_id]:
                self.closed.add(event.request_id)
