"""What is asked: conversations of one turn or several, as descriptions that are rendered when they are sent."""

import random
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from penstock.bench.load.dataset import Row
from penstock.bench.load.lengths import Lengths
from penstock.bench.load.traces import BLOCK_TOKENS, TraceRequest, scaled

# What a block's content is for, so that equal numbers of different kinds are different content.
_PREFIX, _OWN, _HASHED = range(3)


class Block(msgspec.Struct, frozen=True):
    """Random content: equal keys have equal content, as far as the shorter one goes."""

    key: tuple[int, ...]
    tokens: int


class Turn(msgspec.Struct, frozen=True):
    """One request.

    Attributes:
        prompt: blocks of random content, or what a dataset says: a text, token ids or messages.
        output: most tokens of the answer.
        cancel_after: chunks after which the client leaves; None stays to the end.
    """

    prompt: tuple[Block, ...] | str | tuple[int, ...] | tuple[dict[str, Any], ...]
    output: int
    cancel_after: int | None = None


class Conversation(msgspec.Struct, frozen=True):
    """Turns that follow each other, each with all before it in its prompt; `at` is its time in a trace, in seconds."""

    turns: tuple[Turn, ...]
    at: float = 0.0


class Shape(msgspec.Struct, frozen=True):
    """Random conversations.

    Attributes:
        input, output: tokens of each turn; a first turn's prefix comes on top.
        prefix: tokens of the shared prefix, 0 for none.
        prefixes: how many different ones there are; each conversation has one of them at random.
        turns: of each conversation.
    """

    input: Lengths
    output: Lengths
    prefix: int = 0
    prefixes: int = 1
    turns: int = 1


def random_conversations(shape: Shape, seed: int) -> Iterator[Conversation]:
    """Conversations without an end; the same for the same seed, with other content for another."""
    source, number = random.Random(f"conversations {seed}"), 0
    while True:
        turns = []
        for turn in range(shape.turns):
            blocks = [Block((seed, _OWN, number), shape.input.draw(source))]
            if turn == 0 and shape.prefix:
                blocks.insert(0, Block((seed, _PREFIX, source.randrange(shape.prefixes)), shape.prefix))
            turns.append(Turn(tuple(blocks), shape.output.draw(source)))
            number += 1
        yield Conversation(tuple(turns))


def trace_conversations(requests: Iterable[TraceRequest], scale: float, seed: int) -> Iterator[Conversation]:
    """A trace's requests, lengths multiplied with `scale`; equal hash_ids are equal content."""
    size = scaled(BLOCK_TOKENS, scale)
    for number, request in enumerate(requests):
        left, blocks = scaled(request.prompt, scale), []
        for identity in request.hash_ids:
            if left:
                blocks.append(Block((seed, _HASHED, identity), min(size, left)))
                left -= blocks[-1].tokens
        if left:
            blocks.append(Block((seed, _OWN, number), left))
        yield Conversation((Turn(tuple(blocks), scaled(request.output, scale)),), request.at)


def dataset_conversations(rows: Iterable[Row], output: Lengths, seed: int) -> Iterator[Conversation]:
    """A dataset's rows in their order; `output` is for those that do not say how long their answer is."""
    source = random.Random(f"dataset {seed}")
    for row in rows:
        prompt = row.prompt if row.prompt is not None else row.messages or ()
        yield Conversation((Turn(prompt, row.output_length or output.draw(source)),))


def with_cancellations(conversations: Iterable[Conversation], share: float, seed: int) -> Iterator[Conversation]:
    """The same, a share of the turns being left after a random number of chunks, fewer than the answer's tokens."""
    source = random.Random(f"cancellations {seed}")

    def drawn(turn: Turn) -> Turn:
        leaves, after = source.random() < share, source.random()
        return msgspec.structs.replace(turn, cancel_after=1 + int(after * (turn.output - 1))) if leaves else turn

    for conversation in conversations:
        yield msgspec.structs.replace(conversation, turns=tuple(drawn(turn) for turn in conversation.turns))
