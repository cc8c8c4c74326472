"""From conversations to rows of token ids: rendered by the chat template, with the model's own turns marked.

    python -m training.data        # writes build/training/corpus.safetensors

Loss is taken on what the model is to say: everything behind `<|assistant|>` up to and with `<|end|>`.
"""

from __future__ import annotations

import functools
import hashlib
import multiprocessing
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from rich.progress import track
from safetensors.numpy import load_file, save_file
from tokenizers import Tokenizer

from penstock.bundled.corpus.checks import haiku_json, poem_lines
from penstock.bundled.corpus.dialogue import Conversation
from penstock.bundled.corpus.generator import training
from penstock.bundled.corpus.turns import turns_of
from penstock.text.chat_template import ChatTemplate
from training.export import load_tokenizer
from training.hints import running_syllables, topic_tokens
from training.recipe import CONTEXT, SEED, WORK

CHAT_TEMPLATE = Path(__file__).with_name("chat_template.jinja")
CORPUS = WORK / "corpus.safetensors"
# Conversations of the ordinary mixture, and as many long ones as the last phase needs.
CONVERSATIONS, LONG_CONVERSATIONS = 160_000, 1_500
CHUNK = 1_000
POEM_TASKS = frozenset(("haiku", "open", "titled", "another", "change", "replace"))
JSON_TASKS = frozenset(("json", "to_json"))


@dataclass(frozen=True)
class Corpus:
    """Conversations end to end: token ids, whether each is the model's to say, where each starts; poems' hashes.

    `syllables` and `topics` are hints (see training.hints), 0 where there is none; `begin` and `pad` are the ids of the
    tokens that begin a conversation and fill up a row.
    """

    tokens: NDArray[np.uint16]
    learned: NDArray[np.bool_]
    syllables: NDArray[np.uint8]
    topics: NDArray[np.uint16]
    starts: NDArray[np.int64]
    poems: NDArray[np.uint64]
    begin: int
    pad: int

    def lengths(self) -> NDArray[np.int64]:
        """Tokens of each conversation."""
        return np.diff(self.starts, append=len(self.tokens))


@functools.cache
def _template() -> ChatTemplate:
    return ChatTemplate(CHAT_TEMPLATE.read_text())


def render(conversation: Conversation) -> str:
    """The conversation as the chat template writes it, without a prompt for a further turn."""
    return _template().render(
        conversation.messages,
        special_tokens={},
        add_generation_prompt=False,
        variables={"tools": list(conversation.tools) or None},
    )


def training_conversations(indices: Iterable[int]) -> Iterator[Conversation]:
    """Conversations of the training corpus by number; those from CONVERSATIONS on are long."""
    for index in indices:
        yield training(SEED, index, 1.0) if index >= CONVERSATIONS else training(SEED, index)


def learned_positions(tokens: NDArray[np.uint16], assistant: int, end: int) -> NDArray[np.bool_]:
    """Which tokens the model has to say itself."""
    learned = np.zeros(len(tokens), dtype=np.bool_)
    start = None
    for position in np.flatnonzero((tokens == assistant) | (tokens == end)):
        if tokens[position] == assistant:
            start = position + 1
        elif start is not None:
            learned[start : position + 1] = True
            start = None
    return learned


def poem_hash(text: str) -> int:
    """A 64-bit hash of a poem's three lines."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest())


def poem_hashes(conversation: Conversation) -> Iterator[int]:
    """Hashes of all poems that the model says, as text or as JSON."""
    for turn in turns_of(conversation):
        lines = None
        if turn.task in JSON_TASKS:
            found = haiku_json(turn.expected)
            lines = found.lines if found else None
        elif turn.task in POEM_TASKS:
            lines = poem_lines(turn.expected)
        if lines:
            yield poem_hash("\n".join(lines))


class Encoded(NamedTuple):
    """A conversation as arrays of one entry for each token; see Corpus."""

    tokens: NDArray[np.uint16]
    learned: NDArray[np.bool_]
    syllables: NDArray[np.uint8]
    topics: NDArray[np.uint16]


def without_hints(tokens: Sequence[int], learned: NDArray[np.bool_]) -> Encoded:
    """A conversation that nothing is known of but its text."""
    count = len(tokens)
    return Encoded(
        np.array(tokens, dtype=np.uint16), learned, np.zeros(count, dtype=np.uint8), np.zeros(count, dtype=np.uint16)
    )


def encode(tokenizer: Tokenizer, conversations: Sequence[Conversation]) -> list[Encoded]:
    """Conversations as arrays, with all of the model's turns learned."""
    texts = [render(each) for each in conversations]
    assistant, end = (tokenizer.token_to_id(f"<|{name}|>") for name in ("assistant", "end"))
    found = []
    for text, conversation, encoding in zip(
        texts, conversations, tokenizer.encode_batch(texts, add_special_tokens=False), strict=True
    ):
        tokens = np.array(encoding.ids, dtype=np.uint16)
        learned = learned_positions(tokens, assistant, end)
        syllables = running_syllables(text, encoding.offsets)
        found.append(Encoded(tokens, learned, syllables, topic_tokens(tokenizer, learned, conversation.topics)))
    return found


def make_corpus_of(tokenizer: Tokenizer, conversations: Sequence[Encoded], poems: Sequence[int] = ()) -> Corpus:
    """A corpus of these conversations, in this order."""
    starts = np.cumsum([0, *(len(each.tokens) for each in conversations[:-1])], dtype=np.int64)
    begin, pad = (tokenizer.token_to_id(f"<|{name}|>") for name in ("begin", "pad"))
    arrays = map(np.concatenate, zip(*conversations, strict=True))
    return Corpus(*arrays, starts, np.unique(np.array(poems, dtype=np.uint64)), begin, pad)


def _encode_chunk(first: int) -> tuple[list[Encoded], list[int]]:
    last = min(first + CHUNK, CONVERSATIONS + LONG_CONVERSATIONS)
    conversations = list(training_conversations(range(first, last)))
    return encode(load_tokenizer(), conversations), [value for each in conversations for value in poem_hashes(each)]


def make_corpus() -> Corpus:
    """Generate and encode the training corpus with all cores."""
    conversations: list[Encoded] = []
    poems: list[int] = []
    firsts = range(0, CONVERSATIONS + LONG_CONVERSATIONS, CHUNK)
    with multiprocessing.get_context("spawn").Pool() as pool:
        for encoded, hashes in track(pool.imap(_encode_chunk, firsts), "Generating", total=len(firsts)):
            conversations += encoded
            poems += hashes
    return make_corpus_of(load_tokenizer(), conversations, poems)


def save_corpus(corpus: Corpus, path: Path) -> None:
    """Write beside the place and move, so that an interruption leaves no half of a file."""
    arrays = {name: np.asarray(value) for name, value in vars(corpus).items()}
    scratch = path.with_suffix(".new")
    save_file(arrays, scratch)
    scratch.replace(path)


def load_corpus(path: Path = CORPUS) -> Corpus:
    """The corpus that `save_corpus` wrote."""
    arrays = load_file(path)
    return Corpus(**{**arrays, "begin": int(arrays["begin"]), "pad": int(arrays["pad"])})


class Packer:
    """Whole conversations, packed into rows of equal length.

    Epoch by epoch the conversations that fit into a row are shuffled and put one after another into the first of a few
    open rows that has room; where none has, the fullest is given out, filled up with padding that no loss is taken on.
    """

    OPEN_ROWS = 16

    def __init__(self, corpus: Corpus, positions: int, seed: int, short: int = 0) -> None:
        """`short`: of conversations of up to that many tokens only as many tokens are taken as of longer ones."""
        self.corpus, self.positions, self.seed = corpus, positions, seed
        self.lengths = corpus.lengths()
        self.fitting = np.flatnonzero(self.lengths <= positions + 1)
        if short:
            is_short = self.lengths[self.fitting] <= short
            long, brief = self.fitting[~is_short], self.fitting[is_short]
            brief = np.random.default_rng(seed).permutation(brief)
            few = int(np.searchsorted(np.cumsum(self.lengths[brief]), self.lengths[long].sum()))
            self.fitting = np.concatenate((long, brief[:few]))

    def rows(self) -> Iterator[Encoded]:
        """Rows without end."""
        epoch = 0
        while True:
            order = np.random.default_rng([self.seed, self.positions, epoch]).permutation(self.fitting)
            yield from self._pack(order)
            epoch += 1

    def _pack(self, order: NDArray[np.int64]) -> Iterator[Encoded]:
        open_rows: list[list[int]] = [[] for _ in range(self.OPEN_ROWS)]
        room = [self.positions + 1] * self.OPEN_ROWS
        for index in order:
            length = int(self.lengths[index])
            row = next((row for row in range(self.OPEN_ROWS) if room[row] >= length), None)
            if row is None:
                row = min(range(self.OPEN_ROWS), key=room.__getitem__)
                yield self._fill(open_rows[row])
                open_rows[row], room[row] = [], self.positions + 1
            open_rows[row].append(int(index))
            room[row] -= length
        for members in open_rows:
            if members:
                yield self._fill(members)

    def _fill(self, members: list[int]) -> Encoded:
        padding = np.full(self.positions + 1, self.corpus.pad, dtype=np.uint16)
        row = without_hints(padding, np.zeros(self.positions + 1, dtype=np.bool_))
        at = 0
        for index in members:
            start, length = int(self.corpus.starts[index]), int(self.lengths[index])
            for name, into in row._asdict().items():
                into[at : at + length] = getattr(self.corpus, name)[start : start + length]
            at += length
        return row


def main() -> None:
    """Make the corpus and say how large it is."""
    corpus = make_corpus()
    save_corpus(corpus, CORPUS)
    too_long = int((corpus.lengths() > CONTEXT + 1).sum())
    print(
        f"{len(corpus.starts):,} conversations, {len(corpus.tokens):,} tokens "
        f"({int(corpus.learned.sum()):,} to learn), "
        f"{len(corpus.poems):,} different poems in {CORPUS}; {too_long} conversations are longer than the context of "
        f"{CONTEXT:,}, and training leaves them out"
    )


if __name__ == "__main__":
    main()
