"""Scores texts: the logits of all their positions at once, and texts to score."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from penstock.bundled.corpus.generator import calibration
from penstock.compression.texts import whole_text
from penstock.core.errors import RequestError, TokenizerError
from penstock.kernels.packing import Weight, tensors_of
from penstock.kernels.program import Program
from penstock.loading.tokenizers import tokenizer_in
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


@dataclass(frozen=True, slots=True, eq=False)
class TextScorer:
    """A model that computes a whole text at once.

    Attributes:
        name: as users call it.
        path: its directory or file.
        dtype, quantization: what it computes in, and what its weights are kept as.
        vocab_size: number of logits.
        weights, program: what computes, with a KV pool of its own.
        tables: block tables that a batch has.
    """

    name: str
    path: Path
    dtype: str
    quantization: str
    vocab_size: int
    weights: Mapping[str, Weight]
    program: Program
    tables: int

    @property
    def weight_bytes(self) -> int:
        """What the weights take in memory; one that is used twice counts once."""
        tensors = {id(tensor): tensor for weight in self.weights.values() for tensor in tensors_of(weight)}
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())

    def logits(self, ids: list[int]) -> Tensor:
        """[positions, vocabulary] in float32, in this process's memory."""
        return self.program.run(whole_text(ids, self.tables)).float().cpu()


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


def encoded(model: Path, vocab_size: int, texts: Iterable[str], longest: int, count: int) -> list[list[int]]:
    """Token ids of the first texts as an encoder reads them, cut to `longest` tokens, special ones counted."""
    tokenizer = _tokenizer(model, vocab_size)
    behind = tokenizer.added[1]
    found: list[list[int]] = []
    for ids in map(tokenizer.encode, texts):
        if len(found) == count:
            break
        found.append(ids if len(ids) <= longest else [*ids[: longest - behind], *ids[len(ids) - behind :]])
    return found


def messages(count: int, *, seed: int) -> Iterator[str]:
    """What is said in the default calibration set's conversations, of this number of them."""
    for conversation in calibration(count, seed):
        for message in conversation.messages:
            if isinstance(content := message.get("content"), str) and content.strip():
                yield content


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
