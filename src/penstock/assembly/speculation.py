"""Makes who drafts, as the configuration says."""

from collections.abc import Mapping
from pathlib import Path

from msgspec.structs import replace

from penstock.assembly.backend import Storage
from penstock.assembly.load import load
from penstock.assembly.storage import storage_for
from penstock.core.config import EngineConfig
from penstock.core.speculation import DraftModelConfig, SpeculationConfig
from penstock.kernels.cpu_torch import IMPLEMENTATIONS
from penstock.kernels.dispatch import Dispatcher
from penstock.kernels.packing import Weight
from penstock.kernels.program import Program, compile_program
from penstock.kernels.tape import Tape
from penstock.layers.decoder import States
from penstock.loading.checkpoint import open_checkpoint
from penstock.loading.fitting import model_of
from penstock.loading.packing import heads_packing
from penstock.loading.weights import load_weights
from penstock.models.declaration import ModelDeclaration
from penstock.models.heads import declare_heads
from penstock.runtime.storage import TORCH_DTYPES
from penstock.sampling.sampler import Sampler
from penstock.speculation.chain import Chain
from penstock.speculation.decoding import Decode, StepwiseDecoder, in_one_call
from penstock.speculation.draft_model import DraftModel
from penstock.speculation.eagle import EagleProposer
from penstock.speculation.either import Either
from penstock.speculation.medusa import MedusaProposer
from penstock.speculation.ngram import NgramProposer
from penstock.speculation.proposer import Proposer
from penstock.stepping.tables import BlockTables

# What of the target's hidden states each proposer learns from.
STATES: Mapping[str, States] = {"medusa": "selected", "eagle": "all"}


def make_proposer(
    config: EngineConfig,
    declaration: ModelDeclaration,
    weights: Mapping[str, Weight],
    storage: Storage,
    tables: BlockTables,
) -> Proposer | None:
    """The proposer for the model of `declaration`, `weights`, `storage` and `tables`; None where nothing drafts.

    Raises StartupError where the draft model cannot be loaded.
    """
    speculation = config.speculation
    if speculation is None:
        return None
    if speculation.proposer == "ngram":
        return NgramProposer(speculation.remembers)
    if speculation.proposer in STATES:
        return _heads(speculation, config, declaration, weights, storage, tables)
    if speculation.draft is not None:
        draft, rejects = speculation.draft, speculation.rejects
        larger = _draft_model(draft, config, tables, rejects)
        if speculation.proposer == "either":
            return Either(NgramProposer(speculation.remembers), larger)
        if speculation.proposer != "chain":
            return larger
        chained = speculation.chain
        # Nothing asks for the distributions that it draws from, but its noise has to be that of the larger one.
        smaller = (
            NgramProposer(speculation.remembers)
            if chained is None
            else _draft_model(chained, config, tables, rejects, tells=False)
        )
        return Chain(larger, smaller, Sampler(declaration.vocab_size), rejects=rejects)
    tape = declaration.record(layers=speculation.layers)
    dtype = TORCH_DTYPES[config.model.dtype]
    program = compile_program(tape, weights, storage, dtype, Dispatcher(IMPLEMENTATIONS))
    decode = _decode(program, declaration.vocab_size, speculation.rejects)
    return DraftModel(program, decode, tables, range(len(storage.spec.groups)), rejects=speculation.rejects)


def _draft_model(
    draft: DraftModelConfig, config: EngineConfig, tables: BlockTables, rejects: bool, *, tells: bool = True
) -> DraftModel:
    """A model that drafts; for rejection sampling, where it `tells` from which distributions, it gives these too."""
    quantization = draft.quantization
    model = replace(config.model, path=draft.path, quantization=quantization, quantize_head=quantization)
    dtype = TORCH_DTYPES[model.dtype]
    checkpoint = open_checkpoint(Path(draft.path), weights=model.load_format != "dummy")
    declaration = model_of(checkpoint)
    loaded = load(model, checkpoint, declaration, lambda done, all: None)
    assert draft.spec is not None, "a model has layers"
    storage = storage_for(draft.spec, config.cache.num_blocks, dtype)
    program = compile_program(declaration.record(), loaded.weights, storage, dtype, Dispatcher(IMPLEMENTATIONS))
    # Its layers use the first group's tables, in which a whole context stands.
    decode = _decode(program, declaration.vocab_size, rejects and tells)
    return DraftModel(program, decode, tables, (0,), (storage, config.cache.num_blocks), rejects=rejects)


def _heads(
    speculation: SpeculationConfig,
    config: EngineConfig,
    target: ModelDeclaration,
    weights: Mapping[str, Weight],
    storage: Storage,
    tables: BlockTables,
) -> Proposer:
    """Heads on the hidden states of the `target`, whose embedding and projection to logits they may share."""
    kind, draft, rejects = speculation.proposer, speculation.draft, speculation.rejects
    assert draft is not None, "heads are loaded from somewhere"
    dtype = TORCH_DTYPES[config.model.dtype]
    checkpoint = open_checkpoint(Path(draft.path))
    heads = declare_heads(kind, checkpoint.config, checkpoint.tensors, target)
    own = load_weights(checkpoint, heads, dtype, packing=heads_packing(draft.quantization))
    tape = Tape()
    heads.record(tape)
    if draft.spec is not None:
        storage = storage_for(draft.spec, config.cache.num_blocks, dtype)
    program = compile_program(tape, {**weights, **own}, storage, dtype, Dispatcher(IMPLEMENTATIONS))
    if kind == "medusa":
        return MedusaProposer(program, Sampler(heads.vocab_size), rejects=rejects)
    decode = _decode(program, heads.vocab_size, rejects)
    return EagleProposer(program, decode, tables, (0,), storage, rejects=rejects)


def _decode(program: Program, vocab_size: int, rejects: bool) -> Decode:
    if program.decode is not None and not rejects:
        return in_one_call(program.decode)
    return StepwiseDecoder(program, Sampler(vocab_size), tells=rejects).decode
