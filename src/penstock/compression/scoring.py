"""Scores texts: the logits of all their positions at once, by a model as it would be served or in plain numbers."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
from msgspec.structs import replace
from torch import Tensor

from penstock.assembly.backend import backend_of
from penstock.assembly.prepare import prepare
from penstock.bundled.corpus.generator import calibration
from penstock.configuration.options import EngineOptions
from penstock.core.config import BLOCK_SIZE
from penstock.core.errors import ConfigurationError, RequestError, TokenizerError
from penstock.core.kv import build_kv_spec
from penstock.kernels.batch import StepBatch
from penstock.kernels.dispatch import Dispatcher
from penstock.kernels.packing import Weight, tensors_of
from penstock.kernels.program import compile_program
from penstock.loading.tokenizers import tokenizer_in
from penstock.runtime.storage import TORCH_DTYPES
from penstock.text.chat_template import ChatEncoder, load_chat_template
from penstock.text.tokenizer import Tokenizer

# What models are calibrated on is not what they are compared on.
CALIBRATION_SEED, COMPARISON_SEED = 0, 1
# Conversations that are looked at for each that is wanted.
_TRIED = 3


@dataclass(frozen=True, slots=True, eq=False)
class ScoredText:
    """A text as tokens, and at which of them models are compared (never at the first, which nothing comes before)."""

    ids: list[int]
    compared: Tensor


class Scorer:
    """A model that computes a whole text at once.

    Attributes:
        name: as users call it.
        dtype, quantization: what it computes in, and what its weights are kept as.
        weight_bytes: what the weights take in memory.
        vocab_size: number of logits.
    """

    def __init__(self, options: EngineOptions, longest: int) -> None:
        """For texts of at most `longest` tokens. Raises StartupError where the model cannot be loaded."""
        # Candidates are many, and each is loaded once.
        prepared = prepare(replace(options, loading=replace(options.loading, packed_cache="off")), api_beside=False)
        config, declaration = prepared.config, prepared.declaration
        backend = backend_of(config)
        self.name = options.model
        self.path = Path(config.model.path)
        self.dtype, self.quantization = config.model.dtype, config.model.quantization
        self.vocab_size = declaration.vocab_size
        if longest > declaration.max_position_embeddings:
            raise ConfigurationError(
                f"Texts of {longest} tokens are longer than the {declaration.max_position_embeddings} that {self.name} "
                "was made for; give a smaller --context."
            )
        dtype = TORCH_DTYPES[self.dtype]
        weights = backend.load(prepared.checkpoint, declaration, lambda _done, _total: None).weights
        # An engine leaves torch one thread; here it compares distributions over whole vocabularies.
        torch.set_num_threads(config.threads)
        self.weight_bytes = _bytes_of(weights.values())
        spec = build_kv_spec(declaration.kv_layers, self.dtype, BLOCK_SIZE, options.cache.kv_cache_dtype)
        storage = backend.storage(spec, -(-longest // BLOCK_SIZE) + 1, 0)
        self._groups = len(spec.groups)
        dispatcher = Dispatcher(backend.implementations)
        self._program = compile_program(declaration.record(), weights, storage, dtype, dispatcher)

    def logits(self, ids: list[int]) -> Tensor:
        """[positions, vocabulary] in float32, in this process's memory."""
        count = len(ids)
        places = torch.arange(count)
        table = torch.arange(-(-count // BLOCK_SIZE), dtype=torch.int32)[None]
        batch = StepBatch(
            token_ids=torch.tensor(ids),
            positions=places,
            query_lengths=[count],
            context_lengths=[count],
            num_decodes=int(count == 1),
            logit_rows=places,
            block_tables=(table,) * self._groups,
            block_size=BLOCK_SIZE,
        )
        return self._program.run(batch).float().cpu()


def _bytes_of(weights: Iterable[Weight]) -> int:
    """What weights take in memory; one that is used twice counts once."""
    tensors = {id(tensor): tensor for weight in weights for tensor in tensors_of(weight)}
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())


def _tokenizer(model: Path, vocab_size: int) -> Tokenizer:
    tokenizer = tokenizer_in(model, vocab_size)
    if tokenizer is None:
        raise TokenizerError(f"{model} has no tokenizer, so there is no text for it.")
    return tokenizer


def windows(model: Path, vocab_size: int, text: str, longest: int, most: int) -> list[ScoredText]:
    """A text in windows of `longest` tokens, at most `most` of them, each with the beginning that texts get."""
    tokenizer = _tokenizer(model, vocab_size)
    marked, plain = tokenizer.encode("a"), tokenizer.encode("a", add_special_tokens=False)
    beginning = marked[: marked.index(plain[0])] if plain else []
    ids = tokenizer.encode(text, add_special_tokens=False)
    room = max(1, longest - len(beginning))
    found = []
    for first in range(0, len(ids), room)[:most]:
        whole = [*beginning, *ids[first : first + room]]
        compared = torch.ones(len(whole), dtype=torch.bool)
        compared[: max(1, len(beginning))] = False
        if compared.any():
            found.append(ScoredText(whole, compared))
    return found


def conversations(model: Path, vocab_size: int, longest: int, count: int, *, seed: int) -> list[ScoredText]:
    """The default calibration set's, as the model's chat template writes them; compared is what the model says.

    What a person says is no model's to foresee. Other seeds give other conversations; those that the template refuses
    are left out for others.
    """
    tokenizer = _tokenizer(model, vocab_size)
    encoder = ChatEncoder(tokenizer, load_chat_template(tokenizer))
    found: list[ScoredText] = []
    for conversation in calibration(_TRIED * count, seed):
        if len(found) == count:
            break
        messages, tools = conversation.messages, {"tools": list(conversation.tools) or None}
        try:
            ids = encoder.encode(messages, add_generation_prompt=False, variables=tools)[:longest]
        except RequestError:
            # Some templates want turns to alternate, or know no tools.
            continue
        said = torch.zeros(len(ids), dtype=torch.bool)
        for index, message in enumerate(messages):
            if message["role"] == "assistant":
                begin = len(encoder.encode(messages[:index], variables=tools))
                end = len(encoder.encode(messages[: index + 1], add_generation_prompt=False, variables=tools))
                said[begin:end] = True
        if said.any():
            found.append(ScoredText(ids, said))
    return found
