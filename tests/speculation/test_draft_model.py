"""What a draft model knows of the positions that it has computed in each block."""

import random

import numpy as np

from penstock.core.kv import LayerKV, build_kv_spec
from penstock.runtime.storage import KVStorage
from penstock.speculation.draft_model import _Blocks

SIZE = 16


def blocks(count: int = 12) -> _Blocks:
    spec = build_kv_spec([LayerKV(1, 8)], "bfloat16", SIZE)
    return _Blocks(KVStorage(spec, count), count, SIZE)


def test_positions_are_known_up_to_the_first_gap() -> None:
    kept, table = blocks(), np.array([3, 5, 7, 9], np.int32)
    assert kept.computed(table, 40) == 0
    kept.computes(table, 36)
    assert [kept.computed(table, end) for end in (10, 16, 20, 32, 64)] == [0, 16, 16, 32, 32]
    # A part of it is computed once more, for another sequence.
    kept.computes(table[:1], 12)
    assert kept.computed(table, 64) == 32
    kept.computes(table, 64)
    assert kept.computed(table, 64) == 64


def test_what_is_anothers_is_not_taken_for_ones_own() -> None:
    kept, table = blocks(), np.array([3, 5, 7, 9], np.int32)
    kept.computes(table, 48)
    # A copy goes on differently within its block.
    kept.copy_blocks([(7, 8)])
    other = np.array([3, 5, 8], np.int32)
    assert kept.computed(other, 48) == 48
    kept.forget(other, 37)
    assert kept.computed(other, 48) == 32 and kept.computed(table, 48) == 48
    kept.clear_blocks([5])
    assert kept.computed(table, 48) == 16


def test_no_whole_block_is_forgotten() -> None:
    luck = random.Random(0)
    for _ in range(200):
        kept, table, end = blocks(), np.array(luck.sample(range(12), 8), np.int32), 0
        for _ in range(luck.randint(1, 12)):
            more = luck.randint(1, end + 40)
            if more > 8 * SIZE:
                break
            kept.computes(table, more)
            end = max(end, more)
            assert kept.computed(table, 8 * SIZE) == end // SIZE * SIZE
