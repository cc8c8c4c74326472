"""A made-up model whose next token is a hash of all tokens before it, and what it yields where nothing goes wrong.

A slot holds what a transformer's would: something that depends on the whole prefix, on the position and on the layers
that are stored there.
"""

from collections.abc import Sequence

from penstock.core.kv import EVERYTHING, GroupSpec, KVSpec, LayerState, Plane, Visibility, lay_out
from penstock.core.plan import FinishReason, TokenLogprobs
from penstock.core.request import Request
from penstock.core.sampling import SamplingParams

VOCABULARY = 997


def kv_spec(block_size: int = 4, windows: Sequence[int | None] = (None,), *, sources: bool = False) -> KVSpec:
    """A small geometry with one group of one layer for each of `windows`, and one for sources."""
    sees = [Visibility(0, window) for window in windows] + [Visibility(source=True)] * sources
    groups = tuple(GroupSpec(layers=(index,), sees=each) for index, each in enumerate(sees))
    return KVSpec(block_size=block_size, block_bytes=64, groups=groups, pieces=((),) * len(groups))


def sourced_spec(block_size: int = 4) -> KVSpec:
    """Layers of three kinds, whose slots are of different sizes: full attention, a window of 5, and sources."""
    full = LayerState((Plane("key", (2, 64), "bfloat16"), Plane("value", (2, 64), "bfloat16")))
    window = LayerState((Plane("key", (2, 128), "bfloat16"), Plane("value", (2, 128), "bfloat16")), Visibility(0, 5))
    source = LayerState(
        (Plane("key", (3, 64), "bfloat16"), Plane("value", (3, 64), "bfloat16")), Visibility(source=True)
    )
    return lay_out([full, window, source, source, full, source], block_size)


def made_up_spec(block_size: int = 4, record_interval: int = 8) -> KVSpec:
    """Layers of four kinds: full attention with heads of 64 beside latents without values; a window of 5 behind the

    first 3 positions, with heads of 128; and records of the whole sequence.
    """
    full = LayerState((Plane("key", (2, 64), "bfloat16"), Plane("value", (2, 64), "bfloat16")))
    latent = LayerState((Plane("latent", (576,), "bfloat16"),))
    window = LayerState((Plane("key", (2, 128), "bfloat16"), Plane("value", (2, 128), "bfloat16")), Visibility(3, 5))
    record = LayerState((Plane("state", (4, 64, 32), "float32", "sequence"),), EVERYTHING)
    return lay_out([full, window, latent, window, record, full], block_size, record_interval)


def seen(group: GroupSpec, position: int, source: int = 0) -> list[int]:
    """The positions whose state the token at `position` reads in a group: of a record the one before the next.

    They are all `source` tokens of its source where the group is of these.
    """
    if group.sees.source:
        return list(range(source))
    if group.record_interval is not None:
        return [position]
    first = 0 if group.sees.last is None else max(0, position - group.sees.last + 1)
    return [*range(min(group.sees.first, first)), *range(first, position + 1)]


def part_of(content: int, part: int) -> int:
    """What a slot's block `part` holds of a content."""
    return hash((content, part)) if part else content


def digest(before: int, token: int, position: int) -> int:
    """What the KV of `token` at `position` depends on; `before` is the digest of the position before it."""
    # Tuples of integers hash the same in every process.
    return hash((before, token, position))


def slot_content(prefix: int, group: int) -> int:
    """What a slot of `group` holds where the prefix up to its position has the digest `prefix`."""
    return hash((prefix, group))


def source_content(source: Sequence[int], position: int, group: int) -> int:
    """What a slot of `group` holds of a position of a source: an encoder sees all of it."""
    return hash((tuple(source), position, group))


def choose_token(visible: Sequence[Sequence[int]], sampling: SamplingParams, sample_index: int, position: int) -> int:
    """The token after `position`: a hash of the slots that each group sees from there."""
    content = hash(tuple(hash(tuple(slots)) for slots in visible))
    return hash((content, sampling.seed or 0, sample_index, position)) % VOCABULARY


def score_token(visible: Sequence[Sequence[int]], token: int, position: int) -> TokenLogprobs:
    """What the prompt's `token` behind `position` is scored as: a hash of the slots that each group sees from there."""
    content = hash(tuple(hash(tuple(slots)) for slots in visible))
    return TokenLogprobs(token, -float(hash((content, token, position)) % VOCABULARY), [], [])


def pool_state(before: int, visible: Sequence[Sequence[int]], position: int) -> int:
    """What a vector is after one more position: it depends on all that went into it, in order."""
    return hash((before, tuple(hash(tuple(slots)) for slots in visible), position))


def vector_of(state: int) -> bytes:
    """A complete vector."""
    return state.to_bytes(8, "little", signed=True)


def ends_output(token: int, sampling: SamplingParams, eos_token_ids: Sequence[int], output_length: int) -> bool:
    """Whether `token`, the last of `output_length`, ends the output."""
    if output_length < sampling.min_tokens:
        return False
    return token in sampling.stop_token_ids or (not sampling.ignore_eos and token in eos_token_ids)


def expected_output(
    spec: KVSpec,
    prompt: Sequence[int],
    sampling: SamplingParams,
    sample_index: int = 0,
    eos_token_ids: Sequence[int] = (),
    source: Sequence[int] = (),
) -> tuple[list[int], FinishReason]:
    """The output of one sample and why it ends: a function of the request alone."""
    history = history_of(spec, source)
    history.extend(prompt)
    output: list[int] = []
    assert sampling.max_tokens is not None
    if sampling.max_tokens == 0:
        return output, "length"
    while True:
        position = len(history.tokens) - 1
        visible = history.seen_from(spec, position)
        token = choose_token(visible, sampling, sample_index, position)
        output.append(token)
        history.extend([token])
        if ends_output(token, sampling, eos_token_ids, len(output)):
            return output, "stop"
        if len(output) == sampling.max_tokens:
            return output, "length"


def expected_scores(spec: KVSpec, prompt: Sequence[int], source: Sequence[int] = ()) -> list[TokenLogprobs]:
    """What the tokens of a prompt are scored as, from the second on."""
    history = history_of(spec, source)
    history.extend(prompt)
    scores = []
    for position, token in enumerate(prompt[1:]):
        visible = history.seen_from(spec, position)
        scores.append(score_token(visible, token, position))
    return scores


def expected_vector(spec: KVSpec, request: Request) -> bytes:
    """The vector of a request that asks for one."""
    prompt = request.prompt_token_ids
    history = history_of(spec, request.source)
    history.extend(prompt)
    state = 0
    for position in range(len(prompt) - 1 if request.pooling == "last" else 0, len(prompt)):
        visible = history.seen_from(spec, position)
        state = pool_state(state, visible, position)
    return vector_of(state)


def history_of(spec: KVSpec, source: Sequence[int] = ()) -> "History":
    """That of a sequence which has no token yet, but for its source."""
    return History(len(spec.groups), source, spec.source_group)


class History:
    """Tokens, and what their slots must hold in each group, those of a source among them."""

    def __init__(self, groups: int, source: Sequence[int] = (), source_group: int | None = None) -> None:
        self.tokens: list[int] = []
        self.slots: list[list[int]] = [[] for _ in range(groups)]
        self.source, self.source_group = tuple(source), source_group
        self._digest = hash(self.source) if source else 0
        if source_group is not None:
            self.slots[source_group] = [source_content(source, at, source_group) for at in range(len(source))]

    def extend(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            self._digest = digest(self._digest, token, len(self.tokens))
            self.tokens.append(token)
            for group, slots in enumerate(self.slots):
                if group != self.source_group:
                    slots.append(slot_content(self._digest, group))

    def seen_from(self, spec: KVSpec, position: int) -> list[list[int]]:
        """What each group sees from a position."""
        return [
            [slots[place] for place in seen(group, position, len(self.source))]
            for group, slots in zip(spec.groups, self.slots, strict=True)
        ]

    def copy(self) -> "History":
        other = History(len(self.slots), self.source, self.source_group)
        other.tokens = self.tokens.copy()
        other.slots = [slots.copy() for slots in self.slots]
        other._digest = self._digest
        return other
