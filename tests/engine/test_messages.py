"""The wire format: what goes in comes out, however the bytes are cut."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.config import CacheConfig, EngineConfig, ModelConfig, SchedulerConfig
from penstock.core.errors import EngineError
from penstock.core.events import KeptTokens, LoadSnapshot, SampleOutput
from penstock.core.kv import LayerKV, build_kv_spec
from penstock.core.plan import Ending, Gained, TokenLogprobs, failed
from penstock.core.speculation import DraftModelConfig, SpeculationConfig
from penstock.engine.messages import (
    PROTOCOL_VERSION,
    Abort,
    FrameBuffer,
    Start,
    StepOutputs,
    encode_frame,
    from_engine_decoder,
    pack_config,
    pack_outputs,
    to_engine_decoder,
    unpack_config,
    unpack_outputs,
)

token_ids = st.lists(st.integers(0, 2**31 - 1), max_size=4)
logprobs = st.builds(TokenLogprobs, st.integers(0, 9), st.floats(-50, 0), token_ids, st.lists(st.floats(-50, 0)))
endings = st.builds(
    Ending,
    st.sampled_from(["stop", "length", "abort", "error"]),
    st.none() | st.integers(0, 9) | st.text(max_size=3),
    st.none() | st.text(max_size=3),
    st.none() | st.text(max_size=3),
)
several_logprobs = st.none() | st.lists(logprobs, max_size=2)
gained = st.builds(
    Gained, token_ids, st.none() | endings, several_logprobs, several_logprobs, st.none() | st.binary(max_size=8)
)
outputs = st.builds(
    SampleOutput,
    st.integers(0, 2**40),
    st.integers(0, 127),
    gained | st.builds(Gained, token_ids),
    st.none() | st.integers(0, 5000),
    st.none() | st.builds(KeptTokens, st.integers(0, 5000), st.lists(st.integers(0, 5000), max_size=4)),
    st.just(0) | st.integers(0, 5000),
)


@given(st.lists(outputs, max_size=6))
def test_columns_hold_every_output(events: list[SampleOutput]) -> None:
    frame = encode_frame(pack_outputs(events, LoadSnapshot(step=3, running=2)))
    (body,) = FrameBuffer().feed(frame)
    message = from_engine_decoder.decode(body)
    assert isinstance(message, StepOutputs)
    assert message.load.running == 2
    assert unpack_outputs(message) == events


def test_stop_reason_and_error_cross_the_boundary() -> None:
    events = [
        SampleOutput(1, 0, Gained([5], Ending("stop", "END"))),
        SampleOutput(2, 0, Gained([6], Ending("stop", 17))),
        SampleOutput(3, 0, failed("it broke")),
        SampleOutput(4, 0, failed("it is full", "out_of_memory")),
    ]
    (body,) = FrameBuffer().feed(encode_frame(pack_outputs(events, LoadSnapshot())))
    assert unpack_outputs(from_engine_decoder.decode(body)) == events


@given(st.lists(st.integers(0, 2**40), min_size=1, max_size=5), st.data())
def test_frames_survive_every_cut(request_ids: list[int], data: st.DataObject) -> None:
    stream = b"".join(encode_frame(Abort(request_id)) for request_id in request_ids)
    frames = FrameBuffer()
    seen = []
    while stream:
        size = data.draw(st.integers(1, len(stream)))
        seen += [to_engine_decoder.decode(body) for body in frames.feed(stream[:size])]
        stream = stream[size:]
    assert seen == [Abort(request_id) for request_id in request_ids]


def test_an_impossible_length_is_refused() -> None:
    with pytest.raises(EngineError, match="claims"):
        list(FrameBuffer().feed(b"\xff\xff\xff\xff"))


def test_a_configuration_takes_names_that_are_not_utf_8() -> None:
    path = b"/caf\xe9/m\xc3\xb6del".decode("utf-8", "surrogateescape")
    spec = build_kv_spec((LayerKV(2, 16),), "float32", 16)
    config = EngineConfig(
        model=ModelConfig(path, "/tokenizer", "float32", packed_cache=path),
        cache=CacheConfig(spec, 4),
        scheduler=SchedulerConfig(max_num_seqs=1, max_num_batched_tokens=8, max_model_len=8),
        threads=1,
        speculation=SpeculationConfig("draft", draft=DraftModelConfig(path, "none", spec)),
    )
    (body,) = FrameBuffer().feed(encode_frame(Start(PROTOCOL_VERSION, pack_config(config))))
    started = to_engine_decoder.decode(body)
    assert isinstance(started, Start) and unpack_config(started.config) == config
