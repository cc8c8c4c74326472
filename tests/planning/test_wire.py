"""What those that compute together send each other, in the formulae of the papers."""

import json
from pathlib import Path

import pytest

from penstock.core.shares import token_shares
from penstock.planning.reading import shape_of
from penstock.planning.wire import DEVICES, RANKS, sent_of_contexts, sent_of_parts, sent_of_stages

MODELS = json.loads((Path(__file__).parents[2] / "benchmarks" / "public_models.json").read_text())
# 80 layers, 8,192 wide, 64 heads of 128.
SEVENTY = shape_of(MODELS["Llama-3.1-70B"])


def test_devices_send_two_rings_a_layer() -> None:
    """Megatron-LM, section 3: two all-reduces a layer; round a ring each sends 2 (n - 1) / n of its numbers."""
    sent = sent_of_parts(SEVENTY, DEVICES, 4, tokens=10, wanted=1)
    assert sent.bytes == 10 * 80 * 2 * (8192 * 2) * 2 * 3 / 4
    # Each takes as many rounds as a tree has.
    assert sent.rounds == 80 * 2 * 2
    assert sent_of_parts(SEVENTY, DEVICES, 1, tokens=10, wanted=1).bytes == 0


@pytest.mark.parametrize("size", [2, 4])
def test_ranks_write_embeddings_sums_and_logits(size: int) -> None:
    """A token: its embedding, and two sums a layer; behind the last layer's attention only those with logits go on."""
    summed = 4 * 8192 * (10 + 10 * 2 * 79 + 3 * 2)
    assert sent_of_parts(SEVENTY, RANKS, size, tokens=10, wanted=3).bytes == summed
    # Logits come to the first rank, which has its own.
    other = sent_of_parts(SEVENTY, RANKS, size, tokens=10, wanted=3, rank=1).bytes
    assert other == summed + 4 * 3 * token_shares(128256, size)[1].count


def test_whole_experts_of_devices_are_reached_there_and_back() -> None:
    """Of 8 groups, a token's 8 chosen experts reach 1 - (7/8)^8 of the devices, each of 7 in 8 another one."""
    shape = shape_of(MODELS["DeepSeek-V3"])
    sent = sent_of_parts(shape, DEVICES, 8, tokens=1, wanted=1, groups=8)
    reached = 8 * (1 - (7 / 8) ** 8) * 7 / 8
    assert sent.bytes == pytest.approx(58 * 2 * 7168 * 2 * reached)


def test_stages_hand_on_the_stream_and_what_is_to_be_added() -> None:
    assert sent_of_stages(SEVENTY, RANKS, tokens=10).bytes == 10 * 2 * 8192 * 4
    assert sent_of_stages(SEVENTY, DEVICES, tokens=10).bytes == 10 * 2 * 8192 * 2


def test_contexts_are_merged_by_head() -> None:
    attended = 80 * 10 * 64 * (128 + 2)
    # Queries, and keys and values of 8 heads; then the one token that goes on, before and behind its attention.
    given, passing = 80 * 5 * (64 + 2 * 8) * 128, 2 * 8192
    assert sent_of_contexts(SEVENTY, RANKS, 2, tokens=10, wanted=1).bytes == 4 * (attended + given + passing)
