"""A server, its engine and its users in one thread, on one clock, from one seed; promises are kept whatever goes wrong.

Everything between a user's request and the executor is what a server runs: the ASGI application with admission,
deadlines and drain, `Engine` with its watch and its restarts, `EngineProcess` and the messages, the worker's loop,
core, scheduler and cache. Simulated are the clock, the sockets, the process, chance, and the executor, whose tokens are
a hash of the KV that it reads.
"""

import asyncio
import contextlib
import hashlib
import logging
import random
from collections import Counter
from collections.abc import AsyncGenerator, Collection
from unittest import mock

import msgspec

from penstock.core.config import CacheConfig, EngineConfig, ModelConfig
from penstock.core.errors import EngineError, EngineUnavailable, RequestError
from penstock.core.plan import StepPlan
from penstock.core.request import Request
from penstock.core.work import ModelWork
from penstock.engine.client import MOST_INTERRUPTIONS, Engine
from penstock.engine.contention import CpuWait
from penstock.engine.core import GrammarCompiler
from penstock.engine.interface import ModelInfo, RequestOutput
from penstock.engine.messages import Abort
from penstock.engine.outputs import RequestState
from penstock.engine.process import EngineProcess
from penstock.engine.record import Record
from penstock.engine.watch import Patience
from penstock.text.detokenizer import Detokenizer
from support.made_up_model import expected_output, expected_scores, expected_vector
from support.simulated_loop import SimulatedLoop, simulate
from support.world_engine import Broken, Death, NoWait, Worker
from support.world_jobs import CONTEXT, EOS, Job, Scenario, scenario
from support.world_manners import language
from support.world_server import SEED, Server

# Long enough for what happens in the same moment.
MOMENT = 0.001
PATIENCE = Patience(hang_seconds=5.0, longest_delay=8.0)
OUTCOMES = (
    *("finished", "failed", "aborted", "refused", "given up"),
    # Over HTTP only.
    *("overloaded", "late", "stopped", "cancelled"),
)


class World:
    """One seed's run. `run` raises AssertionError or Broken where a promise is not kept.

    Attributes:
        deaths: ends of an engine so far.
        began: when the first users could come, on the world's clock.
        ill: names of jobs one of whose rows was made to fail.
        outcomes: how many jobs ended how.
        work: what steps cost, as the engine tells.
        grammars: what makes grammars ready; None where there are none.
        cpu_wait: for how long the engine waits for a processor.
    """

    work = ModelWork()
    grammars: GrammarCompiler | None = None
    cpu_wait: CpuWait = NoWait()

    def __init__(self, plan: Scenario) -> None:
        self.plan = plan
        self.deaths = 0
        self.began = 0.0
        self.ill: set[int | None] = set()
        self.outcomes: Counter[str] = Counter()
        self.workers: list[Worker] = []
        self.jumps = 0
        # How many engines have ended that computed a request; by its client's state, which stays the same.
        self._interruptions: Counter[RequestState] = Counter()
        self._trace = hashlib.blake2b()
        self._rng = random.Random(-plan.seed - 1)
        needs = [self._blocks_for(job) for job in plan.jobs]
        self._vocabulary = language()[0].vocab_size
        self.largest_need = max([need for need in needs if need <= plan.num_blocks], default=1)

    def _blocks_for(self, job: Job) -> int:
        longest = max(map(len, job.prompts))
        output = 0 if job.pooling is not None else self._most_tokens(job, longest)
        tokens = longest + max(output, 1) - 1
        return self.plan.spec.blocks_for(tokens, self.plan.config.max_num_batched_tokens)

    def _most_tokens(self, job: Job, prompt: int) -> int:
        """Of an output: without a limit, or with one beyond the context, it may fill the context."""
        asked, room = job.params.max_tokens, max(0, self.plan.config.max_model_len - prompt)
        return room if asked is None else min(asked, room)

    # What workers ask and tell.

    def note(self, data: bytes) -> None:
        """Part of what happened, for the trace."""
        self._trace.update(data)

    def trace(self) -> str:
        """A hash of everything that happened, in order."""
        return self._trace.hexdigest()

    def may_die(self) -> bool:
        """Whether another engine may end; counts it."""
        if self.deaths >= self.plan.faults.deaths:
            return False
        self.deaths += 1
        return True

    def taken(self, worker: Worker, request: Request) -> None:
        """An engine has taken a request; raises Death where no engine survives it."""
        assert worker.protocol is not None
        waiter = worker.protocol._waiters.get(request.request_id)
        if waiter is not None and self._interruptions[waiter.state] >= MOST_INTERRUPTIONS:
            raise Broken(f"a request is computed again that {MOST_INTERRUPTIONS} engines have not survived")
        self._poison("taken", [request])

    def begun(self, requests: Collection[Request]) -> None:
        """A step computes these; raises Death where no engine survives one of them."""
        self._poison("computed", requests)

    def computed(self, plan: StepPlan) -> None:
        """A step was computed, which takes no time."""

    def _poison(self, when: str, requests: Collection[Request]) -> None:
        seeds = {request.sampling.seed for request in requests if request.pooling is None}
        if any(job.poison == when for job in self.plan.jobs if job.params.seed in seeds):
            self.deaths += 1
            raise Death

    def interrupted(self, worker: Worker) -> None:
        """An engine has ended, or has said that it does: what it computed, or may have computed, counts."""
        assert worker.protocol is not None
        computing = worker.computing
        for request_id, waiter in worker.protocol._waiters.items():
            if computing is None or request_id in computing:
                self._interruptions[waiter.state] += 1

    def broken(self, error: BaseException) -> None:
        """A promise was not kept; the first is reported."""
        if not self._broken.done():
            self._broken.set_exception(AssertionError(f"{type(error).__name__}: {error}"))
            self._broken.exception()

    # The run.

    def run(self) -> "World":
        """From the first request to an engine that is idle again."""
        loggers = [logging.getLogger(f"penstock.{name}") for name in ("engine", "server")]
        were = [logger.disabled for logger in loggers]
        for logger in loggers:
            logger.disabled = True
        try:
            with mock.patch("penstock.engine.intake.secrets.randbits", lambda bits: SEED.get()):
                simulate(self._main())
        finally:
            for logger, was in zip(loggers, were, strict=True):
                logger.disabled = was
        return self

    async def _main(self) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimulatedLoop)
        self.loop = loop
        self._broken: asyncio.Future[None] = loop.create_future()
        loop.set_exception_handler(lambda _, context: self.broken(context.get("exception") or Broken(str(context))))
        self.engine = await Engine.start(self._launch, PATIENCE, lambda number: self.workers[number].stopped)
        cache = CacheConfig(self.plan.spec, self.plan.num_blocks)
        config = EngineConfig(ModelConfig("", "", "float32"), cache, self.plan.config, 1)
        self.engine.configure(config)
        self.server = Server(self, self.plan, config)
        everything = loop.create_task(self._everything())
        await asyncio.wait([everything, self._broken], return_when=asyncio.FIRST_COMPLETED)
        (self._broken if self._broken.done() else everything).result()

    async def _everything(self) -> None:
        model = ModelInfo("simulated", CONTEXT, self._vocabulary, 2, EOS)
        await self.engine.ready(model, language()[0].table)
        self.began = self.loop.now
        others = [self.loop.create_task(self._jump()) for _ in range(self.plan.faults.jumps)]
        if self.plan.front.drain_at is not None:
            others.append(self.loop.create_task(self._stop(self.plan.front.drain_at)))
        await asyncio.gather(*(self._user(job) for job in self.plan.jobs), *others)
        # All is well again, whatever has happened.
        await self._until_served()
        self.check_idle(self.workers[-1])
        await self._canary()
        self.check_idle(self.workers[-1])
        await self.engine.close()
        self._check_results()

    async def _launch(self) -> EngineProcess:
        worker = Worker(self, len(self.workers))
        self.workers.append(worker)
        process = EngineProcess(worker, lambda done, total: None, Record(worker.memory))  # type: ignore[arg-type]
        worker.protocol = process
        process.connection_made(worker)  # type: ignore[arg-type]
        return process

    async def _jump(self) -> None:
        await asyncio.sleep(self._rng.random() * 5.0)
        self.jumps += 1
        self.loop.now += self._rng.choice([0.5, 40.0, 4000.0, 1e7])

    async def _stop(self, after: float) -> None:
        await asyncio.sleep(after)
        await self.server.stop(self.plan.front.drain_seconds)

    def expect_ready(self, worker: Worker, ready: bool, after: float = MOMENT) -> None:
        """Ask the server, a moment after an engine has begun or ended, whether it is ready, if nothing came between."""
        jumps = self.jumps

        async def ask() -> None:
            await asyncio.sleep(after)
            as_before = worker.serves == ready and worker is self.workers[-1] and jumps == self.jumps
            if as_before and (ready or self.deaths):
                await self.server.check_ready(ready)

        task = self.loop.create_task(ask())
        task.add_done_callback(
            lambda done: done.cancelled() or done.exception() is None or self.broken(done.exception())
        )

    async def _until_served(self) -> None:
        while True:
            with contextlib.suppress(EngineUnavailable):
                self.engine.check_ready()
                core = self.workers[-1].core
                if core is not None and not core.has_work and not self.workers[-1].inbox:
                    return
            await asyncio.sleep(0.1)

    async def _canary(self) -> None:
        """Whoever comes last is served like the first."""
        params = {"max_tokens": 1, "seed": 1 << 40}
        like = self.plan.jobs[0].params
        job = Job(-1, [1], type(like)(**params), self.plan.jobs[0].standing, (), None, 0.0, 0.0, None, None)
        await self._user(job)
        fits = self._blocks_for(job) <= self.plan.num_blocks
        assert job.outcome == ("finished" if fits else "refused"), f"the last request was {job.outcome}"
        self._check_tokens(job)

    # Users.

    async def _user(self, job: Job) -> None:
        await asyncio.sleep(job.arrives)
        task = self.loop.create_task(self._ask(job))
        if job.patience is not None:
            self.loop.call_later(job.patience, task.cancel)
        try:
            job.outcome = await task
        except asyncio.CancelledError:
            job.outcome = "aborted"
        job.ended = self.loop.now
        self.outcomes[job.outcome] += 1
        self.note(f"{job.name} {job.outcome} {self.loop.now:.6f}".encode())

    async def _ask(self, job: Job) -> str:
        """Send a request until an engine takes it, and read what comes; how it ended."""
        if job.manner is not None:
            return await self.server.ask(job)
        while True:
            try:
                async with contextlib.aclosing(self._stream(job)) as stream:
                    return await self._read(job, stream)
            except RequestError:
                fits = self._blocks_for(job) <= self.plan.num_blocks
                assert not fits or len(job.prompt) + (job.params.max_tokens or 0) > CONTEXT, "refused without reason"
                return "refused"
            except EngineUnavailable as error:
                assert "again" in error.message or "not moved" in error.message, error.message
                assert "go on as it had begun" not in error.message, error.message
            except EngineError:
                return "given up"
            await asyncio.sleep(0.5 + self._rng.random())

    def _stream(self, job: Job) -> AsyncGenerator[RequestOutput]:
        if job.pooling is not None:
            return self.engine.embed(job.prompt, job.pooling, standing=job.standing)
        return self.engine.generate(job.prompt, job.params, standing=job.standing, keep=job.keep)

    async def _read(self, job: Job, stream: AsyncGenerator[RequestOutput]) -> str:
        count = 0
        finished = False
        async for output in stream:
            assert not finished, "an output follows the last"
            finished = output.finished
            self._take(job, output)
            count += 1
            if count == job.outputs_wanted and not finished:
                return "aborted"
            if job.reading:
                await asyncio.sleep(job.reading)
        assert finished, "the stream ended before the request did"
        return "failed" if "error" in job.finishes.values() else "finished"

    def _take(self, job: Job, output: RequestOutput) -> None:
        assert output.deltas and all(delta.token_ids or delta.finish_reason for delta in output.deltas), "empty output"
        job.cached_tokens = output.cached_tokens
        if output.prompt_logprobs is not None:
            assert job.scores is None, "a prompt's scores are told once"
            job.scores = [score and (score.token, score.logprob) for score in output.prompt_logprobs]
        if output.embedding is not None:
            job.vector = output.embedding
        for delta in output.deltas:
            assert delta.index not in job.finishes, "a sample goes on after its end"
            assert job.tokens is not None
            job.tokens.setdefault(delta.index, []).extend(delta.token_ids)
            job.texts[delta.index] = job.texts.get(delta.index, "") + delta.text
            if delta.finish_reason is not None:
                job.finishes[delta.index] = delta.finish_reason
        assert output.finished == (len(job.finishes) == job.params.n)

    # What must hold.

    def check(self, worker: Worker) -> None:
        """After every turn of an engine: blocks, queues and requests add up, and nobody waits for nothing."""
        core = worker.core
        assert core is not None
        scheduler, cache, pool = core.scheduler, core.scheduler.cache, core.scheduler.cache.pool
        scheduler.check()
        assert not cache.index._pending, "a key is pending and nobody computes it"
        used = sum(1 for block in range(pool.num_blocks) if pool.references(block) > 0)
        assert pool.num_free + used + pool.num_cached + pool.num_retiring == pool.num_blocks
        load = scheduler.snapshot()
        assert load.blocks_free + load.blocks_used + load.blocks_cached == load.blocks_total
        in_flight = set(scheduler._requests)
        assert not in_flight & worker.closed, "a request is computed after its end"
        assert in_flight | worker.closed == set(worker.submitted), "a request is gone without its last event"
        assert worker.protocol is not None
        coming = {message.request.request_id for message in worker.inbox if hasattr(message, "request")}
        lost = set(worker.protocol._waiters) - in_flight - coming
        lost = {each for each in lost if not worker.protocol._waiters[each].state.finished}
        assert not lost, f"somebody waits for {lost}, which nobody computes"
        left = in_flight - set(worker.protocol._waiters)
        told = {message.request_id for message in worker.inbox if isinstance(message, Abort)}
        assert left <= told, "a request is computed that nobody waits for"
        self.server.check()
        last = [waiter for waiter in worker.protocol._waiters.values() if self._interruptions[waiter.state] >= 2]
        assert len(last) <= 1, "requests that two engines have not survived are computed together"

    def check_gone(self, job: Job) -> None:
        """No engine computes for a user who has gone, or has an answer."""
        for worker in self.workers[-1:]:
            assert worker.protocol is not None
            for waiter in worker.protocol._waiters.values():
                request = waiter.state.request
                assert request.pooling is not None or request.sampling.seed != job.name, "nobody waits for this"

    def check_idle(self, worker: Worker) -> None:
        """Nothing is left behind."""
        self.check(worker)
        assert worker.core is not None and worker.protocol is not None
        cache, pool = worker.core.scheduler.cache, worker.core.scheduler.cache.pool
        assert not worker.core.has_work and not worker.inbox and not worker.protocol._waiters
        assert pool.num_used == pool.num_retiring == 0
        assert pool.num_free + pool.num_cached == pool.num_blocks
        assert len(cache.index) == pool.num_cached
        self.server.check_idle()
        load = worker.core.snapshot()
        assert load.running == load.waiting == load.waiting_tokens == load.blocks_used == 0

    def _check_results(self) -> None:
        jobs = self.plan.jobs
        assert sum(self.outcomes.values()) == len(jobs) + 1 and set(self.outcomes) <= set(OUTCOMES)
        for job in jobs:
            most = max((count for state, count in self._interruptions.items() if _is_of(state, job)), default=0)
            assert job.outcome != "given up" or most >= MOST_INTERRUPTIONS, f"job {job.name} was given up too early"
            assert job.outcome != "failed" or job.mark in self.ill, f"job {job.name} failed without a cause"
            self._check_tokens(job)
            self._check_cached(job)
        if any(job.poison for job in jobs):
            given_up = [job for job in jobs if job.outcome == "given up"]
            assert all(job.poison for job in given_up), "a request was given up for what another did"

    def _check_tokens(self, job: Job) -> None:
        """Every token, and the text of all, is what the request alone determines."""
        spec = self.plan.spec
        if job.pooling is not None:
            assert not job.tokens or not any(job.tokens.values())
            if job.outcome == "finished":
                request = Request(request_id=0, prompt_token_ids=job.prompt, sampling=job.params, pooling=job.pooling)
                assert job.vector == expected_vector(spec, request)
            return
        for number, prompt in enumerate(job.prompts):
            params = msgspec.structs.replace(job.params, max_tokens=self._most_tokens(job, len(prompt)))
            for sample in range(job.params.n):
                expected = expected_output(spec, prompt, params, sample, EOS)
                self._check_choice(job, number * job.params.n + sample, *expected)
        if job.scores is not None:
            expected_logprobs = [(score.token, score.logprob) for score in expected_scores(spec, job.prompt)]
            assert job.params.prompt_logprobs is not None and job.scores == [None, *expected_logprobs]
        elif job.outcome == "finished":
            assert job.params.prompt_logprobs is None

    def _check_choice(self, job: Job, index: int, expected: list[int], finish: str) -> None:
        whole = Detokenizer(language()[0].table).finish(expected, finish == "stop")
        reason, text = job.finishes.get(index), job.texts.get(index, "")
        output = None if job.tokens is None else job.tokens.get(index, [])
        if reason in ("stop", "length"):
            assert (output, reason) == (None if output is None else expected, finish), (
                f"job {job.name} got another output"
            )
            assert text == whole, f"job {job.name} got another text"
        else:
            assert output is None or output == expected[: len(output)], f"job {job.name} got another output"
            # Half a character is shown as such at the end of a choice that failed.
            assert whole.startswith(text.rstrip("\ufffd")), f"job {job.name} got another text"
            assert job.outcome != "finished"

    def _check_cached(self, job: Job) -> None:
        """What came from the cache, somebody of the same salt has computed."""
        count = job.cached_tokens
        # Those of several prompts may come from each other, and are told as one sum.
        if not count or job.more:
            return
        others = [other for other in self.plan.jobs if other.standing.cache_salt == job.standing.cache_salt]
        shared = (
            prompt[:count] == job.prompt[: len(prompt[:count])]
            for other in others
            if other is not job
            for prompt in other.prompts
        )
        assert any(shared), f"job {job.name} was given what nobody of its salt has computed"


def _is_of(state: RequestState, job: Job) -> bool:
    return (state.request.pooling is None) == (job.pooling is None) and job.mark == state.request.sampling.seed


def run_world(seed: int) -> World:
    """Run what a seed stands for; a failure says how to run it again."""
    try:
        return World(scenario(seed)).run()
    except (Exception, Broken) as error:
        error.add_note(
            f"world of seed {seed}; again with: python -m pytest tests/simulation --worlds 1 --first-seed {seed}"
        )
        raise
