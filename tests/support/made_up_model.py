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


def kv_spec(block_size: int = 4, windows: Sequence[int | None] = (None,)) -> KVSpec:
    """A small geometry with one group of one layer for each of `windows`."""
    groups = tuple(GroupSpec(layers=(index,), sees=Visibility(0, window)) for index, window in enumerate(windows))
    return KVSpec(block_size=block_size, block_bytes=64, groups=groups, pieces=((),) * len(groups))


def made_up_spec(block_size: int = 4, record_interval: int = 8) -> KVSpec:
    """Layers of four kinds: full attention with heads of 64 beside latents without values; a window of 5 behind the

    first 3 positions, with heads of 128; and records of the whole sequence.
    """
    full = LayerState((Plane("key", (2, 64), "bfloat16"), Plane("value", (2, 64), "bfloat16")))
    latent = LayerState((Plane("latent", (576,), "bfloat16"),))
    window = LayerState((Plane("key", (2, 128), "bfloat16"), Plane("value", (2, 128), "bfloat16")), Visibility(3, 5))
    record = LayerState((Plane("state", (4, 64, 32), "float32", "sequence"),), EVERYTHING)
    return lay_out([full, window, latent, window, record, full], block_size, record_interval)


def seen(group: GroupSpec, position: int) -> list[int]:
    """The positions whose state the token at `position` reads in a group: of a record the one before the next."""
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
) -> tuple[list[int], FinishReason]:
    """The output of one sample and why it ends: a function of the request alone."""
    history = History(len(spec.groups))
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


def expected_scores(spec: KVSpec, prompt: Sequence[int]) -> list[TokenLogprobs]:
    """What the tokens of a prompt are scored as, from the second on."""
    history = History(len(spec.groups))
    history.extend(prompt)
    scores = []
    for position, token in enumerate(prompt[1:]):
        visible = history.seen_from(spec, position)
        scores.append(score_token(visible, token, position))
    return scores


def expected_vector(spec: KVSpec, request: Request) -> bytes:
    """The vector of a request that asks for one."""
    prompt = request.prompt_token_ids
    history = History(len(spec.groups))
    history.extend(prompt)
    state = 0
    for position in range(len(prompt) - 1 if request.pooling == "last" else 0, len(prompt)):
        visible = history.seen_from(spec, position)
        state = pool_state(state, visible, position)
    return vector_of(state)


class History:
    """Tokens, and what their slots must hold in each group."""

    def __init__(self, groups: int) -> None:
        self.tokens: list[int] = []
        self.slots: list[list[int]] = [[] for _ in range(groups)]
        self._digest = 0

    def extend(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            self._digest = digest(self._digest, token, len(self.tokens))
            self.tokens.append(token)
            for group, slots in enumerate(self.slots):
                slots.append(slot_content(self._digest, group))

    def seen_from(self, spec: KVSpec, position: int) -> list[list[int]]:
        """What each group sees from a position."""
        return [
            [slots[place] for place in seen(group, position)]
            for group, slots in zip(spec.groups, self.slots, strict=True)
        ]

    def copy(self) -> "History":
        other = History(len(self.slots))
        other.tokens = self.tokens.copy()
        other.slots = [slots.copy() for slots in self.slots]
        other._digest = self._digest
        return other
