"""Builds an engine from its configuration: weights, KV storage, program, scheduler."""

import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import msgspec
import torch

from penstock.assembly.backend import Backend, Storage, backend_of
from penstock.assembly.choosing import make_choosing
from penstock.assembly.expert_counts import Keeper
from penstock.assembly.gain import describe_gain
from penstock.assembly.links import Begun
from penstock.assembly.prefix_keys import identity, prefix_keys
from penstock.assembly.ranks import Group, of_rank
from penstock.assembly.rehearsal import measure
from penstock.assembly.simulated import build_simulated
from penstock.assembly.speculation import STATES, make_drafting
from penstock.assembly.tiers import open_tiers, put_on_shelves
from penstock.assembly.work import model_work
from penstock.configuration.pool_size import fit_pool
from penstock.core.config import EngineConfig, ModelConfig, Reason
from penstock.core.text_files import shown
from penstock.engine.core import EngineCore
from penstock.engine.fail_points import FailPoints
from penstock.engine.messages import StageTime
from penstock.engine.worker import BuiltEngine
from penstock.kernels.dispatch import Dispatcher
from penstock.kernels.packing import Weight
from penstock.kernels.program import Program, compile_program
from penstock.kernels.progress import operations_done
from penstock.kernels.tape import Tape
from penstock.layers.decoder import States
from penstock.loading.checkpoint import Checkpoint, open_checkpoint
from penstock.loading.fitting import model_of
from penstock.loading.packed_cache import LoadedWeights
from penstock.loading.tokenizers import tokenizer_in
from penstock.loading.vector_modules import modules_of
from penstock.loading.vector_weights import step_weights
from penstock.models.declaration import ModelDeclaration
from penstock.runtime.executor import ModelExecutor
from penstock.runtime.parts import Computing, ExecutorParts
from penstock.runtime.pool import VectorMaker
from penstock.runtime.storage import TORCH_DTYPES
from penstock.runtime.tiers import Tiers
from penstock.scheduler.build import build_scheduler
from penstock.stepping.model import Model
from penstock.stepping.tables import BlockTables
from penstock.text.tokenizer import Tokenizer

PROMISE_HOLDS = "A request's tokens do not depend on the requests beside it: every operation in use is a row function."
PROMISE_OF_CHANCE = (
    "But sampled tokens depend on how many are drafted, and that on the load, since drafts are accepted by rejection "
    "sampling; their distribution does not, nor do greedy outputs."
)
PROMISE_OPEN = (
    "Where two tokens are nearly as likely, which one is chosen can depend on the requests beside it, since sums in "
    "these operations vary with the size of the batch: "
)


class _Budget:
    """Times the stages of a start one after another."""

    def __init__(self, started: float) -> None:
        self.stages: list[StageTime] = []
        self._last = started
        self.done("start Python and import torch")

    def done(self, stage: str) -> None:
        now = time.monotonic()
        self.stages.append(StageTime(stage, now - self._last))
        self._last = now


def build_engine(
    config: EngineConfig,
    progress: Callable[[int, int], None],
    started: float | None = None,
    *,
    backend: Backend | None = None,
    fit: Callable[[ExecutorParts], ExecutorParts] = lambda parts: parts,
    begun: Begun | None = None,
) -> BuiltEngine:
    """Load the model and put the engine together; `progress` gets bytes of weights done and in all.

    `started` is when the process began, by the monotonic clock. `backend` computes; without one, the configuration's.
    `begun` are ranks that have been started. `fit` may replace the executor's parts. Raises StartupError.
    """
    started = time.monotonic() if started is None else started
    if config.simulated is not None:
        return build_simulated(config, config.simulated, started)
    budget = _Budget(started)
    group = None if config.ranks is None else Group(config, config.ranks, lambda: progress(0, 1), begun)
    backend = backend or backend_of(of_rank(config, 0))
    checkpoint = open_checkpoint(Path(config.model.path), weights=config.model.load_format != "dummy")
    whole, declaration = _declared(config, checkpoint)
    points = _begun(config, group)
    loaded = backend.load(config.model, checkpoint, declaration, progress)
    _wait_for_others(loaded, group, budget, progress)
    tokenizer = tokenizer_in(Path(config.model.tokenizer), declaration.vocab_size)
    budget.done("load tokenizer")
    compile_tape = partial(_compiled, loaded.weights, TORCH_DTYPES[config.model.dtype], backend, group)

    def compiled(storage: Storage, *, head: bool) -> Program:
        return compile_tape(declaration.record(head=head, states=_states(config) if head else "none"), storage)

    config, settled = _measured(config, backend, compiled, group, budget)
    spec, storage = config.cache.spec, _pool(config, backend)
    program, tables = compiled(storage, head=True), BlockTables(spec.groups, spec.block_size)
    reader = None if declaration.encoder is None else compile_tape(declaration.record_encoder(), storage)
    choosing, grammars = make_choosing(config, checkpoint, whole, tokenizer, backend.choose)
    vectors_of = _vectors(config.model, checkpoint, whole, tokenizer)
    keys = prefix_keys(config, checkpoint, backend.identity)
    computing = Computing(program, storage, tables, partial(compiled, storage, head=False), vectors_of, reader)
    computing, slots = (computing, storage.slots) if group is None else group.led(computing, storage, config)
    tiers, handover = open_tiers(config, keys.namespace, keys.key_of, slots)
    drafting = make_drafting(config, backend, declaration, loaded.weights, storage, tables, computing.storage)
    executor = _warm(ModelExecutor(fit(ExecutorParts(computing, choosing, drafting, tiers))))
    budget.done("allocate the KV pool, warm up")
    ceilings = backend.ceilings(loaded.weights)
    budget.done("measure the machine")
    scheduler = build_scheduler(config.scheduler, config.cache, namespace=keys.namespace, key_of=keys.key_of)
    news = put_on_shelves(scheduler.cache, tiers, config.slots)
    expert_rows, flush = _counting(config, whole, group, tiers)
    rejects, others = _rejects(config), _depends_on_batch(program, reader)
    gain = describe_gain(config.model, declaration, loaded.weights, ceilings)
    notes = *declaration.notes, *backend.notes, *loaded.notes, *keys.notes, *((gain,) if gain else ())
    return BuiltEngine(
        core=EngineCore(scheduler, executor, grammars, news, points, expert_rows, handover.finds),
        progress=operations_done if group is None else partial(_done_by_all, group),
        vocab_size=declaration.vocab_size,
        tokenizer=tokenizer,
        stages=budget.stages,
        notes=[shown(note) for note in (*notes, _promise(others, rejects=rejects))],
        work=model_work(declaration, loaded.weights, spec),
        ceilings=ceilings,
        settled=settled,
        flush=flush,
        identity="" if others or rejects else identity(config, checkpoint, backend.identity),
        form=keys.form,
        offers_at=handover.place,
        close=(lambda: None) if group is None else group.close,
        when_lost=(lambda _call: None) if group is None else group.when_lost,
    )


def _declared(config: EngineConfig, checkpoint: Checkpoint) -> tuple[ModelDeclaration, ModelDeclaration]:
    """The model, and what the first rank computes of it."""
    whole = model_of(checkpoint).up_to(config.scheduler.max_model_len)
    return whole, whole if config.ranks is None else whole.of_ranks(config.ranks, 0)


def _done_by_all(group: Group) -> int:
    """Operations of all ranks: while another one computes a long step, this one waits and does not hang.

    Of GPUs, launches are counted.
    """
    return operations_done() + group.operations_done()


def _warm(executor: ModelExecutor) -> ModelExecutor:
    """An executor whose first step takes no longer than others."""
    executor.warm_up()
    return executor


def _begun(config: EngineConfig, group: Group | None) -> FailPoints:
    """Where something can be made to go wrong, from the moment on in which loading begins."""
    points = FailPoints() if group is None else group.points
    points.begin(config.faults)
    return points


def _counting(
    config: EngineConfig, declaration: ModelDeclaration, group: Group | None, tiers: Tiers | None
) -> tuple[Callable[[], tuple[int, int]], Callable[[float], bool]]:
    """Rows that experts have computed, and what writes all that is kept beyond the pool and the process."""
    flush = (lambda _seconds: True) if tiers is None else tiers.flush
    if group is None:
        return lambda: (0, 0), flush
    if config.ranks is None or config.ranks.counts is None:
        return lambda: group.choices.rows, flush
    keeper = Keeper(Path(config.ranks.counts), group.choices, declaration)
    return lambda: group.choices.rows, lambda seconds: keeper.write() and flush(seconds)


def _wait_for_others(
    loaded: LoadedWeights, group: Group | None, budget: _Budget, progress: Callable[[int, int], None]
) -> None:
    """Until other ranks have their weights, as this one has."""
    budget.done("map packed weights" if loaded.mapped else "load and pack weights")
    if group is not None:
        group.wait(lambda: progress(1, 1))
        budget.done("wait for the other ranks")


def _compiled(
    weights: Mapping[str, Weight],
    dtype: torch.dtype,
    backend: Backend,
    group: Group | None,
    tape: Tape,
    storage: Storage,
) -> Program:
    """A program over some keys and values."""
    ranks = None if group is None else group.ranks
    return compile_program(tape, weights, storage, dtype, Dispatcher(backend.implementations), ranks)


def _vectors(
    model: ModelConfig, checkpoint: Checkpoint, declaration: ModelDeclaration, tokenizer: Tokenizer | None
) -> VectorMaker:
    """What makes vectors of what is pooled, as the checkpoint says."""
    steps = modules_of(checkpoint, declaration, model.reranker).steps
    return VectorMaker(steps, step_weights(steps, checkpoint, declaration, tokenizer))


def _rejects(config: EngineConfig) -> bool:
    """Whether drafts are accepted by rejection sampling."""
    return config.speculation is not None and config.speculation.rejects


def _states(config: EngineConfig) -> States:
    """The hidden states that what drafts learns from."""
    return "none" if config.speculation is None else STATES.get(config.speculation.proposer, "none")


def _pool(config: EngineConfig, backend: Backend) -> Storage:
    """The KV pool; of several ranks, this one's, with its part of every block."""
    cache = config.cache
    spec = of_rank(config, 0).cache.spec
    return backend.storage(spec, config.pool_blocks, cache.swap_blocks + cache.host_blocks)


def _measured(
    config: EngineConfig, backend: Backend, compiled: Callable[..., Program], group: Group | None, budget: _Budget
) -> tuple[EngineConfig, list[Reason]]:
    """The configuration with a pool of the size that a measured step leaves room for, where there is one to measure.

    Other ranks take part, and have a pool of that size afterwards. The first one's step takes most, since it has the
    logits. Raises InsufficientMemory.
    """
    if config.cache.wish is None or backend.memory is None or backend.choose is None:
        return config, []
    scratch = backend.storage(config.cache.spec, 1, 0)
    programs: tuple[Model, Model] = compiled(scratch, head=True), compiled(scratch, head=False)
    if group is not None:
        programs = group.led_alone(*programs, scratch)
    found = measure(*programs, backend.choose, config, backend.memory, backend.graph_sizes)
    if group is not None:
        found = msgspec.structs.replace(found, free=min(found.free, group.least_free))
    # All of it goes before the pool comes.
    del programs, scratch
    backend.memory.settle()
    budget.done("compile kernels, measure a step")
    fitted, reasons = fit_pool(config, found)
    if group is not None:
        group.have_pool(fitted.pool_blocks)
    return fitted, reasons


def _depends_on_batch(*programs: Program | None) -> list[str]:
    """Operations whose results may depend on what else is in the batch."""
    choices = [choice for program in programs if program is not None for choice in program.choices]
    return sorted({f"{choice.operation} ({choice.implementation})" for choice in choices if not choice.row_function})


def _promise(others: list[str], *, rejects: bool) -> str:
    """Whether results are independent of the batch in this configuration, and which operations are in the way."""
    promise = PROMISE_HOLDS if not others else PROMISE_OPEN + ", ".join(others) + "."
    return f"{promise} {PROMISE_OF_CHANCE}" if rejects else promise
