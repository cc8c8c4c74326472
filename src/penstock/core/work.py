"""What a step must do at least: bytes through memory, products and sums. Pure arithmetic on its facts.

What a step will take, `planning.latency` says: plans and simulations ask it, and `doctor.model_rules` asks it for the
least, of a checkpoint's headers and the machine's ceilings. `ModelWork` is of a step that was computed, by weights as
they lie in memory, and explains where its time went. What weights take is `kept_bytes` for the doctor, as it is for the
configuration, which has to find room for them.

The scheduler asks none of them. It measures, since what it decides must hold where no calibration was made, and where
the machine's speed changes: `scheduler.costs` seconds of steps that decode, by their tokens, for how many drafts pay;
`scheduler.pace` seconds of steps with prompts and of rows beside one another, for how many tokens and rows the next
step may have. They have different means, since the first compares sizes and the second follows the newest steps.
"""

from collections.abc import Iterable

import msgspec

from penstock.core.config import QUANTIZED_BYTES
from penstock.core.facts import StepFacts


def kept_bytes(count: int, kept: str, plain: int, own: tuple[int, int] = (0, 0)) -> float:
    """Bytes of `count` weights that are `kept` as "none", "int8", "int4" or "own".

    Args:
        count: how many.
        kept: what they are rounded to; "own" for the integers that the files have.
        plain: bytes of one that stays a number.
        own: how many of them the files have as integers, and the bytes of these.
    """
    if kept == "own":
        return (count - own[0]) * plain + own[1]
    return count * QUANTIZED_BYTES.get(kept, plain)


class LayerWork(msgspec.Struct, frozen=True, array_like=True):
    """What the attention of some layers that are alike costs.

    Attributes:
        layers: how many.
        kv_bytes: of one position of one layer.
        query_width: of all heads of one layer.
        window: how far back they look; None: all the way.
        late: whether they store nothing, so that only tokens with logits reach them.
    """

    layers: int
    kv_bytes: int
    query_width: int
    window: int | None = None
    late: bool = False


class ExpertWork(msgspec.Struct, frozen=True, array_like=True):
    """What the experts of some layers that are alike cost.

    Attributes:
        layers: how many.
        experts, chosen: of a layer, and of them those that a token has.
        expert_bytes: of one expert's weights.
        operations: of one expert for one token.
        late: whether only tokens with logits reach them.
    """

    layers: int
    experts: int
    chosen: int
    expert_bytes: int
    operations: int
    late: bool = False

    def touched(self, tokens: int) -> float:
        """Experts of a layer that some of the tokens have, where each has any of them as likely as another."""
        return self.experts * (1.0 - (1.0 - self.chosen / self.experts) ** tokens)


class ModelWork(msgspec.Struct, frozen=True):
    """What a model's steps cost.

    Attributes:
        weight_bytes: of the weights that every step reads once.
        head_bytes: of those that a step reads if it has logits: of the head, and of layers that store nothing.
        token_operations, head_operations: for one token, and for one row of logits by the same weights; a product and
            its sum are two.
        attention: of all layers.
        experts: of all layers that have some, whose weights are not among the others.
    """

    weight_bytes: int = 0
    head_bytes: int = 0
    token_operations: int = 0
    head_operations: int = 0
    attention: tuple[LayerWork, ...] = ()
    experts: tuple[ExpertWork, ...] = ()

    def of(self, step: StepFacts) -> tuple[int, int]:
        """A step's bytes and operations.

        Weights are read once, and the keys and values that a row sees once for all its queries; activations, which
        stay in caches, are left out. Where layers have a window, decodes are taken to have equally long contexts. Of
        chunks, those are taken to have logits that see the least.
        """
        tokens, sampled = step.tokens, step.sampled + step.drafted
        moved = self.weight_bytes + (self.head_bytes if step.sampled else 0)
        operations = tokens * self.token_operations + sampled * self.head_operations
        for work in self.attention:
            seen, pairs = _attended_late(step, work.window) if work.late else _attended(step, work.window)
            # What is new is written besides.
            moved += work.layers * work.kv_bytes * (seen + (0 if work.late else tokens))
            operations += 4 * work.layers * work.query_width * pairs
        for mixture in self.experts:
            reaching = sampled if mixture.late else tokens
            moved += round(mixture.layers * mixture.touched(reaching) * mixture.expert_bytes)
            operations += reaching * mixture.layers * mixture.chosen * mixture.operations
        return moved, operations


def merge(layers: Iterable[LayerWork]) -> tuple[LayerWork, ...]:
    """Those that are alike together."""
    merged: dict[LayerWork, int] = {}
    for work in layers:
        kind = msgspec.structs.replace(work, layers=1)
        merged[kind] = merged.get(kind, 0) + work.layers
    return tuple(msgspec.structs.replace(kind, layers=count) for kind, count in merged.items())


def _attended(step: StepFacts, window: int | None) -> tuple[int, int]:
    """Positions that rows see, and pairs of a query and a position that it sees, in one layer."""
    seen = pairs = _decoded(step, window)
    for chunk in step.chunks:
        end = chunk.start + chunk.count
        seen += end if window is None else min(end, window - 1 + chunk.count)
        pairs += _pairs(chunk.start, end, window)
    return seen, pairs


def _attended_late(step: StepFacts, window: int | None) -> tuple[int, int]:
    """The same where of chunks that have logits the last token alone is there."""
    ends = sorted(chunk.start + chunk.count for chunk in step.chunks)[: max(0, step.sampled - step.decodes)]
    seen = _decoded(step, window) + sum(end if window is None else min(end, window) for end in ends)
    return seen, seen


def _decoded(step: StepFacts, window: int | None) -> int:
    """Positions that decodes see."""
    return step.context if window is None else min(step.context, step.decodes * window)


def _pairs(start: int, end: int, window: int | None) -> int:
    """Positions that each of the tokens from `start` on sees, which are itself and those before it, added up."""
    if window is None or end <= window:
        return (end * (end + 1) - start * (start + 1)) // 2
    first = max(start, window)
    return _pairs(start, first, None) + (end - first) * window
