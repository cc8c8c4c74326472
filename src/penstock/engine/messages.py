"""What crosses the process boundary: msgpack of typed messages, each frame led by its length.

The first message in each direction carries the version; a peer that speaks another is refused.
"""

import struct
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from penstock.core.ceilings import Ceilings
from penstock.core.config import EngineConfig, Reason
from penstock.core.errors import EngineError
from penstock.core.events import LoadSnapshot, SampleOutput
from penstock.core.facts import StepFacts
from penstock.core.faults import Fault
from penstock.core.kv_events import KVEvent
from penstock.core.plan import Gained
from penstock.core.request import Request
from penstock.core.text_files import shown
from penstock.core.work import ModelWork
from penstock.scheduler.admission import Limits

PROTOCOL_VERSION = 16
MAX_FRAME_BYTES = 1 << 30
_LENGTH = struct.Struct("<I")


class Start(msgspec.Struct, frozen=True, tag="start"):
    """To the engine, first: build yourself from this configuration, as `pack_config` has made it."""

    version: int
    config: bytes


class Submit(msgspec.Struct, frozen=True, tag="submit"):
    """To the engine: a request, checked against the engine's limits by the sender."""

    request: Request


class Abort(msgspec.Struct, frozen=True, tag="abort"):
    """To the engine: no client waits for this request any more."""

    request_id: int


class Arm(msgspec.Struct, frozen=True, tag="arm"):
    """To the engine: something is to go wrong at a fail-point."""

    fault: Fault


class Pause(msgspec.Struct, frozen=True, tag="pause"):
    """To the engine: compute this number of steps more, then nothing until told otherwise; without a number, go on.

    What comes while nothing is computed waits.
    """

    after_steps: int | None


class Inspect(msgspec.Struct, frozen=True, tag="inspect"):
    """To the engine: look whether everything that must hold does; the answer has the same number."""

    number: int


class Inspected(msgspec.Struct, frozen=True, tag="inspected"):
    """From the engine: which invariant is broken; None where all hold."""

    number: int
    problem: str | None


class Flush(msgspec.Struct, frozen=True, tag="flush"):
    """To the engine: once nothing is computed, wait until what is written beyond the pool is there.

    It waits for a number of seconds at most; the answer has the same number.
    """

    number: int
    seconds: float


class Flushed(msgspec.Struct, frozen=True, tag="flushed"):
    """From the engine: whether all of it is there."""

    number: int
    done: bool


class Progress(msgspec.Struct, frozen=True, tag="progress"):
    """From the engine while it starts: bytes of weights in place, of all."""

    done: int
    total: int


class StageTime(msgspec.Struct, frozen=True):
    """One line of the start-up budget."""

    stage: str
    seconds: float


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """From the engine: it can serve.

    Attributes:
        limits: what no request may exceed.
        vocab_size: token ids are below it.
        stages: what took how long, from the start of its process.
        work: what steps must do at least.
        ceilings: what the machine was measured to do; None where it was not.
        notes: what users should know of how the model runs.
        settled: settings that were estimates until something was measured, and why they are what they are.
        identity, form, offers_at: as in `ModelInfo`.
    """

    version: int
    limits: Limits
    vocab_size: int
    stages: list[StageTime]
    notes: list[str]
    work: ModelWork = ModelWork()
    ceilings: Ceilings | None = None
    settled: list[Reason] = []
    identity: str = ""
    form: str = ""
    offers_at: str = ""


class Heartbeat(msgspec.Struct, frozen=True, tag="heartbeat"):
    """From the engine, about once a second from a thread of its own.

    Attributes:
        progress: rises with every operation of a step, so that a long step can be told from one that hangs.
        busy: whether there is anything to do.
    """

    progress: int
    busy: bool


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """From the engine: it cannot start or go on; an error of the tree, as its code and message."""

    code: str
    message: str


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """From the engine: a submitted request that it could not accept."""

    request_id: int
    code: str
    message: str
    param: str | None = None


class StepOutputs(msgspec.Struct, frozen=True, tag="step"):
    """From the engine, once a step: all rows' tokens, and the load.

    Attributes:
        request_ids, sample_indices, counts: one entry for each output that has tokens and nothing else.
        tokens: their tokens one after another, `counts` of them each.
        others: the other outputs, each with its place among all, in order.
        load: the engine's state after the step.
        step: what the step did; None where none was computed.
        prepared: requests that something was made ready for, and the seconds that took.
        changes: of the prefix cache, where they are told.
    """

    request_ids: list[int]
    sample_indices: list[int]
    counts: list[int]
    tokens: list[int]
    others: list[tuple[int, SampleOutput]]
    load: LoadSnapshot
    step: StepFacts | None = None
    prepared: list[tuple[int, float]] = []
    changes: list[KVEvent] = []


ToEngine = Start | Submit | Abort | Arm | Pause | Inspect | Flush
FromEngine = Progress | Ready | Heartbeat | Failed | Refused | Inspected | Flushed | StepOutputs

_encoder = msgspec.msgpack.Encoder()
to_engine_decoder = msgspec.msgpack.Decoder(ToEngine)
from_engine_decoder = msgspec.msgpack.Decoder(FromEngine)


def pack_config(config: EngineConfig) -> bytes:
    """The configuration, whatever names of files are in it: one that is not UTF-8 goes as bytes."""
    return _encoder.encode(_names_as_bytes(msgspec.to_builtins(config)))


def unpack_config(packed: bytes) -> EngineConfig:
    """What `pack_config` was given."""
    return msgspec.convert(_bytes_as_names(msgspec.msgpack.decode(packed)), EngineConfig)


def _names_as_bytes(value: Any) -> Any:
    if isinstance(value, str):
        return value if value == shown(value) else value.encode("utf-8", "surrogateescape")
    if isinstance(value, dict):
        return {key: _names_as_bytes(each) for key, each in value.items()}
    return [_names_as_bytes(each) for each in value] if isinstance(value, list | tuple) else value


def _bytes_as_names(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode("utf-8", "surrogateescape")
    if isinstance(value, dict):
        return {key: _bytes_as_names(each) for key, each in value.items()}
    return [_bytes_as_names(each) for each in value] if isinstance(value, list) else value


def encode_frame(message: ToEngine | FromEngine) -> bytes:
    """The message with its length before it."""
    body = _encoder.encode(message)
    if len(body) > MAX_FRAME_BYTES:
        raise EngineError(f"A message of {len(body)} bytes is longer than the {MAX_FRAME_BYTES} that are accepted.")
    return _LENGTH.pack(len(body)) + body


class FrameBuffer:
    """Cuts a byte stream into the bodies of frames."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Take the next bytes; yields every body that is complete. Raises EngineError for an impossible length."""
        self._data += data
        start = 0
        while len(self._data) - start >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._data, start)
            if length > MAX_FRAME_BYTES:
                raise EngineError(f"A frame claims {length} bytes; at most {MAX_FRAME_BYTES} are accepted.")
            end = start + _LENGTH.size + length
            if len(self._data) < end:
                break
            yield bytes(self._data[start + _LENGTH.size : end])
            start = end
        del self._data[:start]


def pack_outputs(
    outputs: Sequence[SampleOutput],
    load: LoadSnapshot,
    step: StepFacts | None = None,
    prepared: Sequence[tuple[int, float]] = (),
    changes: Sequence[KVEvent] = (),
) -> StepOutputs:
    """The outputs of a step, most of them as columns; see `StepOutputs`."""
    request_ids: list[int] = []
    sample_indices: list[int] = []
    counts: list[int] = []
    tokens: list[int] = []
    others: list[tuple[int, SampleOutput]] = []
    for place, output in enumerate(outputs):
        gained = output.gained
        if (
            gained.ending is not None
            or gained.logprobs is not None
            or gained.prompt_logprobs is not None
            or gained.embedding is not None
            or gained.searched
            or output.cached_tokens is not None
            or output.kept is not None
            or output.dropped
        ):
            others.append((place, output))
            continue
        request_ids.append(output.request_id)
        sample_indices.append(output.sample_index)
        counts.append(len(gained.tokens))
        tokens += gained.tokens
    return StepOutputs(
        request_ids=request_ids,
        sample_indices=sample_indices,
        counts=counts,
        tokens=tokens,
        others=others,
        load=load,
        step=step,
        prepared=list(prepared),
        changes=list(changes),
    )


def unpack_outputs(message: StepOutputs) -> list[SampleOutput]:
    """The outputs that `pack_outputs` was given, in the same order."""
    outputs = []
    start = 0
    for request_id, sample_index, count in zip(
        message.request_ids, message.sample_indices, message.counts, strict=True
    ):
        outputs.append(SampleOutput(request_id, sample_index, Gained(message.tokens[start : start + count])))
        start += count
    for place, output in message.others:
        outputs.insert(place, output)
    return outputs
