"""Makes what drafts, as the configuration says."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from msgspec.structs import replace

from penstock.assembly.backend import Backend, Storage
from penstock.core.config import EngineConfig
from penstock.core.kv import KVSpec
from penstock.core.speculation import MOST_BRANCHES, DraftModelConfig, SpeculationConfig
from penstock.kernels.dispatch import Dispatcher
from penstock.kernels.packing import Weight
from penstock.kernels.program import Program, compile_program
from penstock.kernels.tape import Tape
from penstock.layers.decoder import States
from penstock.loading.checkpoint import open_checkpoint
from penstock.loading.fitting import model_of
from penstock.loading.packing import PackedWeights
from penstock.loading.weights import load_weights
from penstock.models.declaration import ModelDeclaration
from penstock.models.heads import declare_heads
from penstock.runtime.parts import Drafting
from penstock.runtime.storage import TORCH_DTYPES
from penstock.sampling.sampler import Sampler
from penstock.speculation.branches import Branches
from penstock.speculation.chain import Chain
from penstock.speculation.decoding import Decode, StepwiseDecoder, in_one_call
from penstock.speculation.draft_model import DraftModel
from penstock.speculation.eagle import EagleProposer
from penstock.speculation.either import Either
from penstock.speculation.medusa import MedusaProposer
from penstock.speculation.ngram import NgramProposer
from penstock.speculation.proposer import Proposer
from penstock.stepping.storage import Blocks
from penstock.stepping.tables import BlockTables

# What of the target's hidden states each proposer learns from.
STATES: Mapping[str, States] = {"medusa": "selected", "eagle": "all"}


def make_drafting(
    config: EngineConfig,
    backend: Backend,
    target: ModelDeclaration,
    weights: Mapping[str, Weight],
    storage: Storage,
    tables: BlockTables,
    blocks: Blocks,
) -> Drafting | None:
    """What drafts for the model `target`, whose `weights`, `storage` and block `tables` it may use too.

    Where `blocks` of that are copied or cleared, all that computes has them so. None where nothing drafts. Raises
    StartupError where the draft model cannot be loaded.
    """
    speculation = config.speculation
    if speculation is None:
        return None
    limits, most = config.scheduler, MOST_BRANCHES if config.scheduler.draft_width else 0
    # Behind the pool's blocks there are those of branches.
    branches = Branches(blocks, tables, tables.num_tables, config.cache.num_blocks, limits.draft_depth, most)
    proposer = _Maker(
        config=config,
        speculation=speculation,
        backend=backend,
        target=target,
        weights=weights,
        storage=storage,
        tables=tables,
    ).proposer()
    return Drafting(proposer, branches, speculation.rejects)


@dataclass(frozen=True, slots=True, eq=False)
class _Maker:
    """Makes a proposer from what `make_drafting` is given."""

    config: EngineConfig
    speculation: SpeculationConfig
    backend: Backend
    target: ModelDeclaration
    weights: Mapping[str, Weight]
    storage: Storage
    tables: BlockTables

    def proposer(self) -> Proposer:
        """The one that the configuration asks for."""
        speculation = self.speculation
        if speculation.proposer == "ngram":
            return NgramProposer(speculation.remembers)
        if speculation.proposer in STATES:
            return self._heads()
        if speculation.draft is None:
            return self._first_layers()
        larger = self._draft_model(speculation.draft)
        if speculation.proposer == "either":
            return Either(NgramProposer(speculation.remembers), larger)
        if speculation.proposer != "chain":
            return larger
        chained = speculation.chain
        # Nothing asks for the distributions that it draws from, but its noise has to be that of the larger one.
        smaller = NgramProposer(speculation.remembers) if chained is None else self._draft_model(chained, tells=False)
        return Chain(larger, smaller, Sampler(self.target.vocab_size), rejects=speculation.rejects)

    def _first_layers(self) -> DraftModel:
        """The first layers of the target, which computes their keys and values anyway."""
        tape, rejects = self.target.record(layers=self.speculation.layers), self.speculation.rejects
        program = self._compile(tape, self.weights, self.storage)
        decode = _decode(program, self.target.vocab_size, rejects)
        return DraftModel(program, decode, self.tables, range(self.tables.num_tables), rejects=rejects)

    def _draft_model(self, draft: DraftModelConfig, *, tells: bool = True) -> DraftModel:
        """A model that drafts; for rejection sampling it `tells` from which distributions, too."""
        rejects, quantization = self.speculation.rejects, draft.quantization
        model = replace(self.config.model, path=draft.path, quantization=quantization, quantize_head=quantization)
        checkpoint = open_checkpoint(Path(draft.path), weights=model.load_format != "dummy")
        declaration = model_of(checkpoint).up_to(self.config.scheduler.max_model_len)
        loaded = self.backend.load(model, checkpoint, declaration, lambda done, all: None)
        assert draft.spec is not None, "a model has layers"
        storage = self._storage(draft.spec)
        program = self._compile(declaration.record(), loaded.weights, storage)
        # Its layers use the first group's tables, in which a whole context stands.
        decode = _decode(program, declaration.vocab_size, rejects and tells)
        return DraftModel(program, decode, self.tables, (0,), (storage, self.config.cache.num_blocks), rejects=rejects)

    def _heads(self) -> Proposer:
        """Heads on the hidden states of the target, whose embedding and projection to logits they may share."""
        kind, draft, rejects = self.speculation.proposer, self.speculation.draft, self.speculation.rejects
        assert draft is not None, "heads are loaded from somewhere"
        checkpoint = open_checkpoint(Path(draft.path))
        heads = declare_heads(kind, checkpoint.config, checkpoint.tensors, self.target)
        packing = PackedWeights(draft.quantization, draft.quantization, native=self.backend.native)
        own = load_weights(checkpoint, heads, self._dtype, packing=packing)
        tape = Tape()
        heads.record(tape)
        storage = self.storage if draft.spec is None else self._storage(draft.spec)
        program = self._compile(tape, {**self.weights, **own}, storage)
        if kind == "medusa":
            return MedusaProposer(program, Sampler(heads.vocab_size), rejects=rejects)
        decode = _decode(program, heads.vocab_size, rejects)
        return EagleProposer(program, decode, self.tables, (0,), storage, rejects=rejects)

    @property
    def _dtype(self) -> torch.dtype:
        return TORCH_DTYPES[self.config.model.dtype]

    def _storage(self, spec: KVSpec) -> Storage:
        """Keys and values of its own, in as many blocks as the target's."""
        return self.backend.storage(spec, self.config.cache.num_blocks, 0)

    def _compile(self, tape: Tape, weights: Mapping[str, Weight], storage: Storage) -> Program:
        return compile_program(tape, weights, storage, self._dtype, Dispatcher(self.backend.implementations))


def _decode(program: Program, vocab_size: int, rejects: bool) -> Decode:
    if program.decode is not None and not rejects:
        return in_one_call(program.decode)
    return StepwiseDecoder(program, Sampler(vocab_size), tells=rejects).decode
