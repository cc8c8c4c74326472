"""Rehearsed steps are as large as any that a scheduler plans."""

import pytest
from msgspec import structs

from penstock.core.config import SchedulerConfig
from penstock.core.kv_policy import PolicyKind, PolicyLimits
from penstock.kernels.batch import StepBatch
from penstock.runtime.rehearsal import largest, rehearsals


@pytest.mark.parametrize(
    "rows, tokens, longest", [(64, 2048, 131_072), (4, 48, 64), (3, 3, 9), (1, 8, 5), (300, 512, 40)]
)
def test_batches_are_well_formed_and_within_the_limits(rows: int, tokens: int, longest: int) -> None:
    limits = SchedulerConfig(max_num_seqs=rows, max_num_batched_tokens=tokens, draft_depth=2)
    batches = list(rehearsals(limits, longest, 2, 16))
    for batch in batches:
        counts, contexts = batch.query_lengths, batch.context_lengths
        assert len(counts) <= rows and sum(counts) == len(batch.token_ids) == len(batch.positions) <= tokens
        assert counts == sorted(counts, key=lambda count: count > 1) and batch.num_decodes == counts.count(1)
        assert all(0 < count <= context <= longest for count, context in zip(counts, contexts, strict=True))
        assert int(batch.positions.max()) < longest
        assert len(batch.logit_rows) <= sum(counts) and int(batch.logit_rows.max()) < sum(counts)
        assert all(table.shape == (len(counts), -(-max(contexts) // 16)) for table in batch.block_tables)
    assert len(batches[0].block_tables) == 2
    assert max(len(batch.token_ids) for batch in batches) == min(tokens, rows * longest)
    assert max(len(batch.query_lengths) for batch in batches) == rows
    assert max(len(batch.logit_rows) for batch in batches) == min(tokens, rows * longest, 3 * rows + 128)


@pytest.mark.parametrize("rows, tokens, longest", [(64, 2048, 131_072), (1, 8, 5)])
def test_where_contexts_are_bounded_attention_is_weighed_and_positions_have_no_end(
    rows: int, tokens: int, longest: int
) -> None:
    limits = SchedulerConfig(max_num_seqs=rows, max_num_batched_tokens=tokens)

    def further(*kinds: PolicyKind) -> list[StepBatch]:
        bounded = structs.replace(limits, kv_policies=PolicyLimits(kinds))
        plain = len(list(rehearsals(limits, longest, 2, 16)))
        return list(rehearsals(bounded, longest, 2, 16))[plain:]

    assert further() == []
    weighed = further("h2o")
    assert all(batch.weighing is not None and max(batch.context_lengths) <= longest for batch in weighed)
    assert {batch.num_decodes == len(batch.query_lengths) for batch in weighed} == {True, False}
    beyond = further("window")
    assert all(batch.weighing is None and max(batch.context_lengths) > longest for batch in beyond)
    assert [len(batch.token_ids) for batch in beyond] == [1, min(65, tokens)]
    assert len(further("window", "snapkv")) == len(weighed) + len(beyond)


def test_one_context_is_the_longest_and_the_others_take_no_time() -> None:
    batch = largest(SchedulerConfig(max_num_seqs=8, max_num_batched_tokens=100), 1000, 3, 1, 16)
    assert batch.query_lengths == [1, 1, 1, 97] and batch.context_lengths == [1000, 1, 1, 97]
    assert batch.positions.tolist() == [999, 0, 0, *range(97)]
