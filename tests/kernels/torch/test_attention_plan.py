"""The plan of a step's attention."""

import torch

from penstock.kernels.batch import StepBatch
from penstock.kernels.torch.attention_plan import plan_attention


def _plan(rows: list[tuple[int, int]], window: int | None = None, score_heads: int = 0) -> object:
    longest = max(context for _, context in rows)
    batch = StepBatch(
        token_ids=torch.zeros(0),
        positions=torch.tensor([place for added, context in rows for place in range(context - added, context)]),
        query_lengths=[added for added, _ in rows],
        context_lengths=[context for _, context in rows],
        num_decodes=sum(added == 1 for added, _ in rows),
        logit_rows=torch.zeros(0),
        block_tables=(torch.zeros((len(rows), -(-longest // 16)), dtype=torch.int32),),
        block_size=16,
    )
    return plan_attention(batch, 0, window, torch.float32, 2, score_heads)


def test_long_prompts_never_make_large_masks() -> None:
    for rows, window in (([(8000, 8000)], None), ([(2048, 16000)], None), ([(8000, 8000)], 1024)):
        (row,) = _plan(rows, window).long_rows
        masks = [piece.mask.numel() for piece in row.pieces if piece.mask is not None]
        assert max(masks, default=0) <= 1 << 21
        assert [piece.tokens[0] for piece in row.pieces] == [0, *(piece.tokens[1] for piece in row.pieces[:-1])]
        assert row.pieces[-1].tokens[1] == rows[0][0]
        if window is not None:
            assert all(piece.keys[1] - piece.keys[0] <= 2 * window for piece in row.pieces)
    (capped,) = _plan([(8000, 8000)], None, score_heads=8).long_rows
    assert all(piece.mask is not None and piece.mask.numel() * 8 <= 1 << 22 for piece in capped.pieces)


def test_decodes_of_very_different_length_are_not_padded_to_the_longest() -> None:
    contexts = [9000, 20, 8800, 35, 17, 8990]
    buckets = _plan([(1, context) for context in contexts]).buckets
    assert sorted(row for bucket in buckets for row in bucket.rows.tolist()) == list(range(6))
    assert sum(bucket.count * bucket.keep[1] for bucket in buckets) < 1.2 * sum(contexts)
    (together,) = _plan([(1, 100), (1, 90), (1, 95)]).buckets
    assert together.rows is None and together.count == 3
    (slid,) = _plan([(1, 9000), (1, 20)], window=64).buckets
    assert slid.blocks.numel() <= 2 * 5


def test_many_long_decodes_are_gathered_in_parts() -> None:
    buckets = _plan([(1, 9000)] * 12).buckets
    assert len(buckets) > 1 and sum(bucket.count for bucket in buckets) == 12
    assert all(bucket.count * bucket.keep[1] <= 1 << 15 for bucket in buckets)
