"""The engine as its users hold it: in a process of its own, which is started again when it ends or hangs.

What was being computed then is computed again from its beginning. The same request gives the same tokens, so that a
client notices only the time it takes: of an output that has begun, only what is new is passed on.
"""

import asyncio
import contextlib
import errno
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence

from msgspec.structs import replace

from penstock.core.ceilings import Ceilings
from penstock.core.config import EngineConfig
from penstock.core.errors import EngineError, EngineUnavailable, InvalidParameter, PenstockError
from penstock.core.events import LoadSnapshot
from penstock.core.facts import StepFacts, StepTotals
from penstock.core.faults import POINTS, Fault
from penstock.core.kv_events import Cleared, KVEvent
from penstock.core.kv_policy import KVPolicy
from penstock.core.request import EVERYBODY, KeptPrefix, Request, Standing
from penstock.core.sampling import SamplingParams
from penstock.core.vectors import Pooling
from penstock.engine.intake import Intake
from penstock.engine.interface import ModelInfo, RequestOutput
from penstock.engine.journal import Journal
from penstock.engine.messages import Ready
from penstock.engine.outputs import RequestState
from penstock.engine.process import EngineLost, EngineProcess, Waiter
from penstock.engine.stops import Stops, stopped_by_signal
from penstock.engine.watch import Patience, RestartPolicy, StallWatch
from penstock.text.table import TokenTable

logger = logging.getLogger("penstock.engine")

Launch = Callable[[], Awaitable[EngineProcess]]

# A request that was cut off by the end of an engine this many times is taken for the cause.
MOST_INTERRUPTIONS = 3


class Engine:
    """A supervised engine (`EngineClient`).

    `start` begins with a first process, `configure` says what to build, `ready` waits until it serves.

    Args:
        launch: starts a process, which has to be configured.
        process: the first one.
        patience: how long what is waited for.
        stopped: whether a process is stopped by a signal.
    """

    def __init__(
        self,
        launch: Launch,
        process: EngineProcess,
        patience: Patience | None = None,
        stopped: Callable[[int], bool] = stopped_by_signal,
    ) -> None:
        self._launch = launch
        self._process = process
        self._patience = patience or Patience()
        self._watch = StallWatch()
        self._stops = Stops(stopped)
        self._config: EngineConfig | None = None
        self._model: ModelInfo | None = None
        self._intake: Intake | None = None
        self._table: TokenTable | None = None
        self._generation = 0
        self._serves = asyncio.Event()
        # Requests that were cut off twice are computed one at a time, to find the one that is the reason.
        self._alone = asyncio.Lock()
        self._tasks: list[asyncio.Task[None]] = []
        self._closing = False
        # Totals of the runs before this one.
        self._earlier = LoadSnapshot()
        # The newest snapshot of the process, and what it comes to with these.
        self._counted = (self._earlier, self._earlier)
        self._observers: list[Callable[[StepFacts], None]] = []
        self._cache_watchers: list[Callable[[Sequence[KVEvent]], None]] = []
        # What is to go wrong while the next process starts.
        self._faults: tuple[Fault, ...] = ()

    @classmethod
    async def start(
        cls, launch: Launch, patience: Patience | None = None, stopped: Callable[[int], bool] = stopped_by_signal
    ) -> "Engine":
        """Start the first process; it begins with its imports."""
        return cls(launch, await launch(), patience, stopped)

    def configure(self, config: EngineConfig) -> None:
        """Say what to build, here and after every restart; to be called once."""
        self._config = config
        self._process.observe, self._process.changed = self._observed, self._changed
        self._process.configure(config)
        self._tasks = [asyncio.ensure_future(self._look())]

    async def ready(self, model: ModelInfo, table: TokenTable | None) -> Ready:
        """Wait until the engine serves; raises what kept it from starting. `table` turns its tokens into text."""
        ready = await self._process.ready()
        self._model, self._table = model, table
        self._serve(ready)
        self._tasks.append(asyncio.ensure_future(self._keep_up()))
        return ready

    async def close(self) -> None:
        """End the process, and what is waited for with EngineUnavailable."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._closing = True
        self._serves.set()
        await self._process.close()

    # What users of the engine call.

    @property
    def model(self) -> ModelInfo:
        """The model that is served."""
        if self._model is None:
            raise EngineUnavailable("The engine is still starting.")
        return self._model

    @property
    def load(self) -> LoadSnapshot:
        """The newest snapshot of the engine's load, with the totals of all its runs."""
        newest = self._process.load
        # Asked for with every output, and another one only after a step.
        if newest is not self._counted[0]:
            self._counted = newest, newest.after(self._earlier)
        return self._counted[1]

    @property
    def totals(self) -> StepTotals:
        """What all steps have done, with those of earlier runs."""
        return self._process.totals

    def observe(self, observer: Callable[[StepFacts], None]) -> None:
        """Have the facts of each step from now on given to `observer`, which must be quick and never raise."""
        self._observers.append(observer)

    def _observed(self, step: StepFacts) -> None:
        for observer in self._observers.copy():
            try:
                observer(step)
            except Exception:
                # It is called while the engine's messages are taken in, which must go on, and once a step.
                self._observers.remove(observer)
                logger.exception("An observer of the engine's steps failed, and is told of no more.")

    def watch_cache(self, watcher: Callable[[Sequence[KVEvent]], None]) -> None:
        """Have what changes in the prefix cache given to `watcher`, which must be quick and never raise.

        It is told of nothing unless the configuration asks for events.
        """
        self._cache_watchers.append(watcher)

    def _changed(self, events: Sequence[KVEvent]) -> None:
        for watcher in self._cache_watchers:
            watcher(events)

    @property
    def ceilings(self) -> Ceilings | None:
        """What the engine that serves now has measured of its machine; None while it has not."""
        return self._process.ceilings

    @property
    def process_id(self) -> int:
        """Of the process that serves now."""
        return self._process.process_id

    def check_ready(self) -> None:
        """Raise EngineUnavailable with the cause unless requests can be served now."""
        if self._model is None:
            if self._process.failure is not None:
                raise EngineUnavailable(self._process.failure.message)
            raise EngineUnavailable("The engine is still loading the model; try again in a few seconds.")
        if not self._serves.is_set() or self._process.failure is not None:
            raise EngineUnavailable("The engine has failed and is being started again; try again in a few seconds.")
        if self._watch.stalled > self._patience.unready_seconds:
            raise EngineUnavailable(f"The engine has not moved for {self._watch.stalled:.0f} s; try again later.")

    def generate(
        self,
        prompt_token_ids: list[int],
        params: SamplingParams,
        *,
        standing: Standing = EVERYBODY,
        keep: tuple[KeptPrefix, ...] = (),
        keep_whole: float = 0.0,
        output: tuple[int, ...] = (),
        kv_policy: KVPolicy | None = None,
        forced_bos: int | None = None,
        offered_at: str = "",
        follow: Callable[[Journal], None] | None = None,
    ) -> AsyncGenerator[RequestOutput]:
        """Submit a request and yield its outputs; see `EngineClient.generate`."""

        def make(intake: Intake) -> Request:
            return intake.request(
                prompt_token_ids,
                params,
                standing,
                keep=keep,
                keep_whole=keep_whole,
                output=output,
                kv_policy=kv_policy,
                forced_bos=forced_bos,
                offered_at=offered_at,
            )

        return self._outputs(make, follow, output)

    def embed(
        self,
        prompt_token_ids: list[int],
        pooling: Pooling,
        *,
        pooled_from: int = 0,
        unseen: int = 0,
        second_from: int = 0,
        standing: Standing = EVERYBODY,
        follow: Callable[[Journal], None] | None = None,
    ) -> AsyncGenerator[RequestOutput]:
        """Submit a request for a vector and yield its output; see `EngineClient.embed`."""

        def make(intake: Intake) -> Request:
            return intake.embedding(
                prompt_token_ids, pooling, standing, pooled_from, unseen=unseen, second_from=second_from
            )

        return self._outputs(make, follow)

    async def _outputs(
        self,
        make: Callable[[Intake], Request],
        follow: Callable[[Journal], None] | None,
        known: tuple[int, ...] = (),
    ) -> AsyncGenerator[RequestOutput]:
        self.check_ready()
        assert self._intake is not None, "check_ready has seen it"
        waiter = Waiter(RequestState(make(self._intake), self._table, self._process.now()))
        if known:
            waiter.state.begin_with(known)
            yield waiter.state.take()
        if follow is not None:
            follow(waiter.state.journal)
        interruptions = 0
        process = self._process
        process.submit(waiter)
        async with contextlib.AsyncExitStack() as stack:
            try:
                while True:
                    try:
                        output = await waiter.next()
                    except EngineLost as lost:
                        interruptions += lost.computing
                        waiter.state.journal.interruption(process.now())
                        if interruptions == MOST_INTERRUPTIONS:
                            raise EngineError(
                                f"The engine failed {interruptions} times while it computed this request, which is not "
                                "tried again."
                            ) from None
                        if lost.computing and interruptions == MOST_INTERRUPTIONS - 1:
                            await stack.enter_async_context(self._alone)
                        process = await self._submit_again(waiter)
                        continue
                    yield output
                    if output.finished:
                        return
            finally:
                waiter.state.journal.end(self._process.now())
                process.leave(waiter)

    async def _submit_again(self, waiter: Waiter) -> EngineProcess:
        """Have the next engine compute what the last one has not; raises EngineUnavailable where there is none."""
        # The loop may not have noticed yet.
        if self._process.failure is not None:
            self._serves.clear()
        await self._wait_until_served()
        if self._closing:
            raise EngineUnavailable("The engine stopped before this request was finished; send it again.")
        if not self._serves.is_set():
            raise EngineUnavailable("The engine failed and could not be started again in time; send it again later.")
        assert self._intake is not None
        state = waiter.state
        state.begin_again(replace(state.request, request_id=self._intake.new_id()))
        self._process.submit(waiter)
        return self._process

    async def _wait_until_served(self) -> None:
        """Wait for an engine, or until there is no more of it to be expected; in looks, as `StallWatch` counts."""
        held = 0.0
        while not self._closing and not self._serves.is_set() and held < self._patience.hold_seconds:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._patience.look_seconds):
                    await self._serves.wait()
            held += self._patience.look_seconds

    def arm(self, fault: Fault) -> None:
        """Let something go wrong at a fail-point: in the process that serves now, or in the next one while it loads.

        Raises InvalidParameter for a place or a rank that there is not.
        """
        ranks = None if self._config is None else self._config.ranks
        size = 1 if ranks is None else ranks.size
        points = [point for point in POINTS if size > 1 or not point.startswith("rank.")]
        if fault.point not in points:
            raise InvalidParameter("point", f"{fault.point[:40]!r} is not one of {', '.join(points)}.")
        if not 0 <= fault.rank < size or (fault.rank and fault.point.startswith("engine.")):
            raise InvalidParameter("rank", f"{fault.rank} has no {fault.point}; engine.* is of rank 0 of {size}.")
        if fault.point == "rank.load":
            self._faults = (*self._faults, fault)
        else:
            self._process.arm(fault)

    def pause(self, after_steps: int | None) -> None:
        """Have the process that serves now compute `after_steps` more steps and then nothing; None: go on.

        Requests are accepted meanwhile, and wait.
        """
        self._process.pause(after_steps)

    async def inspect(self) -> str | None:
        """Which invariant of the engine's books is broken; None where all hold. Raises EngineUnavailable."""
        try:
            return await self._process.inspect()
        except EngineLost:
            raise EngineUnavailable("The engine has failed and is being started again; try again later.") from None

    async def flush(self, seconds: float) -> bool:
        """Wait until what was computed is written to the disk and stores, so long at most; whether it is all there.

        For the end of a server: what is not there then has to be computed again.
        """
        if self._model is None or not self._serves.is_set():
            return False
        try:
            async with asyncio.timeout(seconds):
                return await self._process.flush(seconds)
        except (EngineLost, EngineUnavailable, TimeoutError):
            return False

    # Supervision.

    def _serve(self, ready: Ready) -> None:
        assert self._model is not None
        # What is left of a GPU's memory says how long a context may be.
        self._model = replace(
            self._model,
            max_model_len=ready.limits.max_model_len,
            identity=ready.identity,
            form=ready.form,
            offers_at=ready.offers_at,
        )
        self._intake = Intake(
            ready.limits,
            ready.vocab_size,
            self._model.eos_token_ids,
            has_text=self._table is not None,
            generation=self._generation,
            sourced=self._model.sourced,
        )
        self._watch.begin(self._process)
        self._serves.set()

    async def _keep_up(self) -> None:
        """Start the engine again whenever it has ended."""
        policy = RestartPolicy(self._patience)
        clock = asyncio.get_running_loop().time
        served_from = clock()
        while True:
            await self._process.wait_closed()
            self._serves.clear()
            delay = policy.delay(clock() - served_from)
            when = f" in {delay:.0f} s" if delay else ""
            name = self.model.name
            logger.error("The engine of %s has failed and is started again%s: %s", name, when, self._process.failure)
            await asyncio.sleep(delay)
            # An engine that ends before it serves has served for no time.
            served_from = clock()
            if await self._restart():
                logger.warning("The engine of %s serves again after %.1f s.", name, clock() - served_from)
                served_from = clock()

    async def _restart(self) -> bool:
        """Have a new process; False where it has ended before it could serve."""
        assert self._config is not None
        try:
            process = await self._launch()
            self._earlier = replace(self.load, restarts=self._earlier.restarts + 1)
            process.totals, process.observe = self.totals, self._observed
            # What the one before had cached is gone.
            self._changed([Cleared()])
            process.changed = self._changed
            self._process = process
            self._watch.begin(self._process)
            faults, self._faults = self._faults, ()
            self._process.configure(replace(self._config, faults=faults))
            ready = await self._process.ready()
        except (PenstockError, OSError) as error:
            hint = " (see ulimit -n)" if isinstance(error, OSError) and error.errno == errno.EMFILE else ""
            logger.error("The engine could not be started: %s%s", error, hint)
            return False
        self._generation += 1
        self._serve(ready)
        return True

    async def _look(self) -> None:
        """Kill an engine that a signal has stopped, or that hangs."""
        while True:
            await asyncio.sleep(self._patience.look_seconds)
            process = self._process
            stopped = self._stops.look([process.process_id]) is not None
            # Until it serves for the first time, it says nothing of what it has done.
            if self._model is not None:
                self._watch.look(process, self._patience.look_seconds)
            if process.failure is not None:
                continue
            if stopped:
                process.kill("The engine was stopped by a signal, and has been killed.")
            elif self._watch.stalled > self._patience.hang_seconds:
                process.kill(f"The engine had not moved for {self._watch.stalled:.0f} s, and has been killed.")
                self._watch.begin(process)
