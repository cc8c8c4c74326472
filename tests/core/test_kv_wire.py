"""KV events in vLLM's form, both ways."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.kv_events import Cleared, Removed, Stored
from penstock.core.kv_wire import decode_batch, encode_batch

KEYS = st.binary(min_size=1, max_size=16)
TOKENS = st.lists(st.integers(0, 2**31 - 1), min_size=4, max_size=4).map(
    lambda ids: b"".join(token.to_bytes(4, "little") for token in ids)
)
FIRST = st.builds(Stored, KEYS, st.none(), TOKENS, st.text(max_size=5).map(str.encode))
LATER = st.builds(Stored, KEYS, KEYS, TOKENS)
EVENTS = st.lists(st.one_of(FIRST, LATER, st.builds(Removed, KEYS), st.just(Cleared())), max_size=8)


@given(st.floats(0, 2e9), EVENTS)
def test_what_is_written_is_read(at: float, events: list[Stored | Removed | Cleared]) -> None:
    assert decode_batch(encode_batch(at, events, 4)) == (at, events)


class BlockStored(msgspec.Struct, tag=True, omit_defaults=True):
    """As vLLM declares it."""

    block_hashes: list[bytes | int]
    parent_block_hash: bytes | int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: list[list[object] | None] | None = None
    group_idx: int | None = None


class BlockRemoved(msgspec.Struct, tag=True, omit_defaults=True):
    """As vLLM declares it."""

    block_hashes: list[bytes | int]
    medium: str | None


def as_map(event: msgspec.Struct) -> object:
    return event


def as_array(event: msgspec.Struct) -> object:
    return [type(event).__name__, *(getattr(event, name) for name in event.__struct_fields__)]


@pytest.mark.parametrize("form", [as_map, as_array])
def test_both_forms_of_vllm_are_read(form: object) -> None:
    stored = BlockStored([1, 2**64 - 2], None, [5, 6, 7, 8], 2, None, "GPU", None, [["salt"], None])
    events = [form(stored), form(BlockRemoved([2, b"other"], "GPU"))]  # type: ignore[operator]
    batch = [3.5, events, 0] if form is as_array else {"ts": 3.5, "events": events, "data_parallel_rank": 0}
    first, second = (1).to_bytes(8), (2**64 - 2).to_bytes(8)
    assert decode_batch(msgspec.msgpack.encode(batch)) == (
        3.5,
        [
            Stored(first, None, (5).to_bytes(4, "little") + (6).to_bytes(4, "little"), b"salt"),
            Stored(second, first, (7).to_bytes(4, "little") + (8).to_bytes(4, "little")),
            Removed((2).to_bytes(8)),
            Removed(b"other"),
        ],
    )


WORDS = st.sampled_from(("BlockStored", "ts", "type", "events"))
NONSENSE = st.recursive(
    st.none() | st.integers(-(2**63), 2**63) | st.text(max_size=3) | WORDS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(WORDS, inner),
    max_leaves=10,
)


@given(st.binary(max_size=30) | NONSENSE.map(msgspec.msgpack.encode))
def test_what_is_no_batch_is_refused(payload: bytes) -> None:
    try:
        at, events = decode_batch(payload)
    except ValueError as error:
        assert str(error).startswith("what came is no batch of KV events")
    else:
        assert isinstance(at, float) and isinstance(events, list)
