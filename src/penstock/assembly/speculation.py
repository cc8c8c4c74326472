"""Makes who drafts, as the configuration says."""

from collections.abc import Mapping
from pathlib import Path

from msgspec.structs import replace

from penstock.assembly.load import load
from penstock.core.config import EngineConfig
from penstock.core.speculation import DraftModelConfig
from penstock.kernels.cpu.operations import kv_layout
from penstock.kernels.cpu_torch import IMPLEMENTATIONS
from penstock.kernels.dispatch import Dispatcher
from penstock.kernels.packing import Weight
from penstock.kernels.program import compile_program
from penstock.loading.checkpoint import open_checkpoint
from penstock.models.declaration import ModelDeclaration
from penstock.models.registry import declare
from penstock.runtime.storage import TORCH_DTYPES, KVStorage
from penstock.runtime.tables import BlockTables
from penstock.sampling.sampler import Sampler
from penstock.speculation.draft_model import DraftModel
from penstock.speculation.ngram import NgramProposer
from penstock.speculation.proposer import Proposer


def make_proposer(
    config: EngineConfig,
    declaration: ModelDeclaration,
    weights: Mapping[str, Weight],
    storage: KVStorage,
    tables: BlockTables,
) -> Proposer | None:
    """Who drafts for the model of `declaration`, `weights`, `storage` and `tables`; None where nobody does.

    Raises StartupError where the draft model cannot be loaded.
    """
    speculation = config.speculation
    if speculation is None:
        return None
    if speculation.proposer == "ngram":
        return NgramProposer()
    if speculation.draft is not None:
        return _draft_model(speculation.draft, config, tables)
    tape = declaration.record(layers=speculation.layers)
    dtype = TORCH_DTYPES[config.model.dtype]
    program = compile_program(tape, weights, storage, dtype, Dispatcher(IMPLEMENTATIONS))
    return DraftModel(program, tables, range(len(storage.spec.groups)), Sampler(declaration.vocab_size))


def _draft_model(draft: DraftModelConfig, config: EngineConfig, tables: BlockTables) -> DraftModel:
    quantization = draft.quantization
    model = replace(config.model, path=draft.path, quantization=quantization, quantize_head=quantization)
    dtype = TORCH_DTYPES[model.dtype]
    checkpoint = open_checkpoint(Path(draft.path), weights=model.load_format != "dummy")
    declaration = declare(checkpoint.config)
    loaded = load(model, checkpoint, declaration, lambda done, all: None)
    storage = KVStorage(draft.spec, config.cache.num_blocks, kv_layout(draft.spec, dtype))
    program = compile_program(declaration.record(), loaded.weights, storage, dtype, Dispatcher(IMPLEMENTATIONS))
    # Its layers use the first group's tables, in which a whole context stands.
    return DraftModel(program, tables, (0,), Sampler(declaration.vocab_size), storage)
