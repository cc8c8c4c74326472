"""Events of a prefix cache as vLLM's engine publishes them, so that routers which read that form read Penstock's too.

A batch is msgpack: a time, a list of events, and the rank of a group of devices. vLLM has written each of these as an
array of its fields, and later as a map with their names (vllm/distributed/kv_events.py); both are read, arrays written.

On a ZeroMQ PUB socket a message is a topic, the batch's number, and the batch. A ROUTER socket that is sent the number
of a batch sends it and all behind it again: each with an empty frame and its number before it, and END at the end.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from penstock.core.kv_events import Cleared, KVEvent, Removed, Stored

_NUMBER_BYTES = 8
# In the place of a number, behind the last batch that is sent again.
END = (-1).to_bytes(_NUMBER_BYTES, signed=True)
# What a topic of Penstock's begins with; behind it is the publisher, another one each time that it begins.
TOPIC = b"kv@"
_BATCH = ("ts", "events", "data_parallel_rank")
_STORED = (
    "block_hashes",
    "parent_block_hash",
    "token_ids",
    "block_size",
    "lora_id",
    "medium",
    "lora_name",
    "extra_keys",
)
_REMOVED = ("block_hashes", "medium")
_TOKEN_BYTES = 4
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder().decode


def tcp(host: str, port: int | str) -> str:
    """A place as ZeroMQ names it."""
    return f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"


def encode_number(number: int) -> bytes:
    """A batch's number as a frame."""
    return number.to_bytes(_NUMBER_BYTES)


def decode_number(frame: bytes) -> int:
    """The number in a frame. Raises ValueError where it has none."""
    if len(frame) != _NUMBER_BYTES:
        raise ValueError(f"a number has {_NUMBER_BYTES} bytes, not {len(frame)}")
    return int.from_bytes(frame)


def encode_batch(at: float, events: Sequence[KVEvent], block_size: int) -> bytes:
    """A batch of events, each of one block."""
    return _encode([at, [_fields(event, block_size) for event in events]])


def decode_batch(payload: bytes) -> tuple[float, list[KVEvent]]:
    """When it was sent, and its events, each of one block. Raises ValueError for what is no batch."""
    try:
        batch = _named(_decode(payload), _BATCH)
        return float(batch["ts"]), [event for each in batch["events"] for event in _events(each)]
    except (msgspec.DecodeError, KeyError, IndexError, TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"what came is no batch of KV events: {error}") from None


def _fields(event: KVEvent, block_size: int) -> list[Any]:
    match event:
        case Stored():
            tokens = memoryview(event.tokens).cast("I").tolist()
            extra = [[event.salt.decode()]] if event.salt else None
            return ["BlockStored", [event.key], event.parent, tokens, block_size, None, None, None, extra]
        case Removed():
            return ["BlockRemoved", [event.key], None]
        case Cleared():
            return ["AllBlocksCleared"]


def _events(given: Any) -> Iterator[KVEvent]:
    kind = given["type"] if isinstance(given, dict) else given[0]
    fields = given if isinstance(given, dict) else given[1:]
    if kind == "BlockStored":
        yield from _stored(_named(fields, _STORED))
    elif kind == "BlockRemoved":
        for key in _named(fields, _REMOVED)["block_hashes"]:
            yield Removed(_key(key))
    elif kind == "AllBlocksCleared":
        yield Cleared()
    else:
        raise ValueError(f"there is no event {kind!r}")


def _stored(fields: dict[str, Any]) -> Iterator[Stored]:
    size, tokens = int(fields["block_size"]), fields["token_ids"]
    parent = fields["parent_block_hash"]
    before = None if parent is None else _key(parent)
    extras = fields.get("extra_keys") or ()
    for place, key in enumerate(fields["block_hashes"]):
        content = tokens[place * size : (place + 1) * size]
        if len(content) != size:
            raise ValueError(f"a block of {size} tokens has {len(content)}")
        packed = b"".join(int(token).to_bytes(_TOKEN_BYTES, "little") for token in content)
        extra = extras[place] if place < len(extras) else None
        yield Stored(_key(key), before, packed, _salt(extra) if before is None else b"")
        before = _key(key)


def _salt(extra: Any) -> bytes:
    """What sets a first block apart beside its tokens, as bytes."""
    if not extra:
        return b""
    return extra[0].encode() if len(extra) == 1 and isinstance(extra[0], str) else _encode(extra)


def _key(key: int | bytes) -> bytes:
    """Keys are numbers in some engines."""
    return key if isinstance(key, bytes) else (int(key) % 2**64).to_bytes(8)


def _named(fields: Any, names: Sequence[str]) -> dict[str, Any]:
    return fields if isinstance(fields, dict) else dict(zip(names, fields, strict=False))
