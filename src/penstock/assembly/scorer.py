"""Loads a model to score texts with: as it would be served, or in plain numbers."""

from pathlib import Path

import torch
from msgspec.structs import replace

from penstock.assembly.backend import backend_of
from penstock.assembly.prepare import prepare
from penstock.compression.scoring import TextScorer
from penstock.compression.texts import blocks_for
from penstock.configuration.options import EngineOptions
from penstock.configuration.ranks import check_alone
from penstock.core.config import BLOCK_SIZE
from penstock.core.errors import ConfigurationError
from penstock.core.kv import build_kv_spec
from penstock.kernels.dispatch import Dispatcher
from penstock.kernels.program import compile_program
from penstock.runtime.storage import TORCH_DTYPES


def load_scorer(options: EngineOptions, longest: int) -> TextScorer:
    """A model for texts of at most `longest` tokens. Raises StartupError where it cannot be loaded."""
    # Candidates are many, and each is loaded once.
    options = replace(options, loading=replace(options.loading, packed_cache="off"))
    check_alone(options, "penstock evaluate")
    prepared = prepare(options, api_beside=False)
    config, declaration = prepared.config, prepared.declaration
    if not declaration.decoder.generates:
        raise ConfigurationError(f"{options.model} is an encoder, which gives texts no probabilities.")
    if declaration.encoder is not None:
        raise ConfigurationError(f"{options.model} makes texts of texts, and gives none alone a probability.")
    if longest > declaration.max_position_embeddings:
        raise ConfigurationError(
            f"Texts of {longest} tokens are longer than the {declaration.max_position_embeddings} that "
            f"{options.model} was made for; give a smaller --context."
        )
    backend = backend_of(config)
    weights = backend.load(config.model, prepared.checkpoint, declaration, lambda _done, _total: None).weights
    # An engine leaves torch one thread; here it compares distributions over whole vocabularies.
    torch.set_num_threads(config.threads)
    spec = build_kv_spec(declaration.kv_layers, config.model.dtype, BLOCK_SIZE, options.cache.kv_cache_dtype)
    storage = backend.storage(spec, blocks_for(longest, spec.num_tables), 0)
    dtype, dispatcher = TORCH_DTYPES[config.model.dtype], Dispatcher(backend.implementations)
    program = compile_program(declaration.record(), weights, storage, dtype, dispatcher)
    return TextScorer(
        name=options.model,
        path=Path(config.model.path),
        dtype=config.model.dtype,
        quantization=config.model.quantization,
        vocab_size=declaration.vocab_size,
        weights=weights,
        program=program,
        tables=spec.num_tables,
    )
