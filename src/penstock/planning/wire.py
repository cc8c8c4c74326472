"""What those that compute a model together send each other in a step: bytes, counted from the model's shape alone.

How long that takes follows from a link (`latency`). Each function is of one of those that send.
"""

from collections.abc import Iterator
from math import log2

import msgspec

from penstock.core.shares import head_shares, token_shares
from penstock.planning.shape import LayerShape, ModelShape

# Of a number that goes from layer to layer.
ACTIVATION_BYTES = 2.0


class Wire(msgspec.Struct, frozen=True):
    """How numbers go from one to the others.

    Attributes:
        number: bytes of one.
        ring: whether sums go round, so that each sends 2 (n - 1) / n of its numbers; else each writes its own once,
            where all others read them.
        ends: whether rows of embedding and head are shared out, so that a token's are added up, and logits gathered;
            and whether, behind the last layer that stores, rows without logits go no farther.
    """

    number: float
    ring: bool
    ends: bool

    def summed(self, numbers: float, size: int) -> float:
        """Bytes that each of `size` sends where as many numbers of each are added up."""
        return numbers * self.number * (2 * (size - 1) / size if self.ring else 1.0)


# Devices of a kind that have links, as engines use them, and ranks: this system's own processes on processors.
DEVICES = Wire(ACTIVATION_BYTES, ring=True, ends=False)
RANKS = Wire(4.0, ring=False, ends=True)


class Sent(msgspec.Struct, frozen=True):
    """What one of those that compute together sends of a step.

    Attributes:
        bytes: of all.
        rounds: in which it waits for others; each takes at least the time of a message.
    """

    bytes: float = 0.0
    rounds: float = 0.0

    def __add__(self, other: "Sent") -> "Sent":
        return Sent(self.bytes + other.bytes, self.rounds + other.rounds)


def sent_of_parts(
    shape: ModelShape, wire: Wire, split: int, tokens: float, wanted: float, *, groups: int = 1, rank: int = 0
) -> Sent:
    """Of one that has a part of each layer, in a step of `tokens`; `wanted` of them have logits.

    Results of parts are added up: of attention, and of what follows it (Megatron-LM, Shoeybi et al., 2019, section 3).
    With `groups` that have requests of their own and whole experts, `tokens` are those of one group. What it would add
    up of routed experts goes to the devices of the chosen ones, and back.
    """
    if split == 1:
        return Sent()
    sharing, sent = split // groups, Sent()
    for layer, mixed, behind in _rows(shape, wire, tokens, wanted):
        apart = groups > 1 and layer.mlp.experts > 0
        if sharing > 1:
            sums = 1 + layer.mlp.sums - apart
            sent += Sent(sums * wire.summed(behind * shape.hidden, sharing), layer.count * sums * log2(sharing))
            sent += _normed(layer, wire, sharing, rank % sharing, mixed)
        if apart:
            reached = split * (1.0 - pow(1.0 - 1.0 / split, layer.mlp.chosen)) * (split - 1) / split
            sent += Sent(2 * behind / sharing * shape.hidden * wire.number * reached, layer.count * 2 * log2(split))
    if wire.ends:
        logits = wanted * token_shares(shape.vocabulary, split)[rank].count if rank else 0.0
        sent += Sent(wire.summed(tokens * shape.hidden, split) + logits * wire.number, 2 * log2(split))
    return sent


def sent_of_stages(shape: ModelShape, wire: Wire, tokens: float) -> Sent:
    """Of a stage to the next one, in a step of `tokens`."""
    return Sent(tokens * shape.handed_values * wire.number, 1.0)


def sent_of_contexts(
    shape: ModelShape, wire: Wire, size: int, tokens: float, wanted: float, own: float | None = None
) -> Sent:
    """Of one that has a part of each context, and computes `own` of the tokens; None: an equal share of them.

    It writes queries, keys and values of its tokens, and then what the attention of all tokens to its part comes to,
    with two numbers of each query head more, which are merged (Flash-Decoding, 2023). Where tokens go on whose logits
    are wanted, all have these: each writes its own, and zeros for others.
    """
    sent, own = Sent(), tokens / size if own is None else own
    for layer, mixed, passing in _rows(shape, wire, tokens, wanted):
        attention = layer.attention
        numbers = mixed * attention.query_heads * (attention.head_size + 2)
        if not layer.late:
            numbers += layer.count * own * (attention.query_heads * attention.head_size + attention.token_values)
        rounds = layer.count * (1 if layer.late else 2)
        if passing != mixed:
            numbers += wanted * (shape.hidden + attention.mixed_values + shape.input_values)
            rounds += 3 if shape.input_values else 2
        sent += Sent(numbers * wire.number, rounds * log2(size))
    return sent


def _rows(shape: ModelShape, wire: Wire, tokens: float, wanted: float) -> Iterator[tuple[LayerShape, float, float]]:
    """Layers that are alike, with the rows that their attention has, and that go on behind it, over all of them."""
    last = max(place for place, layer in enumerate(shape.layers) if not layer.late)
    for place, layer in enumerate(shape.layers):
        mixed = layer.count * (wanted if layer.late and wire.ends else tokens)
        yield layer, mixed, mixed - (tokens - wanted if place == last and wire.ends else 0.0)


def _normed(layer: LayerShape, wire: Wire, size: int, rank: int, rows: float) -> Sent:
    """Queries and keys that are normed over all heads, while each device has some of these."""
    attention = layer.attention
    if not attention.normed:
        return Sent()
    own = head_shares(attention.query_heads, attention.kv_heads, size)[rank]
    numbers = rows * (own.query.count + own.kv.count) * attention.head_size
    return Sent(numbers * wire.number, layer.count * 2 * log2(size))
