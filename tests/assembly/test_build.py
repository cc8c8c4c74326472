"""What an engine says of itself when it has been built."""

import time
from pathlib import Path

import pytest

from penstock import LLM, SamplingParams
from penstock.assembly import build
from penstock.assembly.backend import on_processor
from penstock.assembly.prepare import prepare
from penstock.configuration.options import EngineOptions
from penstock.core.errors import ConfigurationError
from penstock.engine.worker import BuiltEngine
from penstock.kernels.cpu.native import OBSTACLE, native
from penstock.kernels.processor import torch_alone


def built(**options: str) -> BuiltEngine:
    config = prepare(EngineOptions.of(model="haiku", threads=1, **options), api_beside=False).config
    return build.build_engine(config, lambda done, total: None, time.monotonic())


def notes(**options: str) -> list[str]:
    return built(**options).notes


@pytest.mark.skipif(OBSTACLE is not None, reason=str(OBSTACLE))
@pytest.mark.parametrize("quantization", ["none", "int8", "int4"])
def test_the_native_kernels_keep_the_promise(quantization: str) -> None:
    assert build.PROMISE_HOLDS in notes(quantization=quantization)


def test_without_them_the_start_says_why_it_does_not_hold() -> None:
    processor = torch_alone("they were not built")
    options = EngineOptions.of(model="haiku", threads=1)
    config = prepare(options, api_beside=False, obstacle=processor.obstacle).config
    said = build.build_engine(config, lambda done, total: None, backend=on_processor(config, processor)).notes
    assert any("attention" in note and "linear" in note for note in said)
    assert any("they were not built" in note for note in said)


@pytest.mark.parametrize("option", [{"quantization": "int8"}, {"speculative": "draft", "draft_quantization": "int4"}])
def test_without_them_nothing_is_rounded(option: dict[str, str]) -> None:
    with pytest.raises(ConfigurationError, match=r"quantization int\d is not possible here: they were not built\."):
        prepare(EngineOptions.of(model="haiku", **option), api_beside=False, obstacle="they were not built")


def test_without_them_no_pool_has_bytes() -> None:
    options = EngineOptions.of(model="haiku", kv_cache_dtype="int8")
    config = prepare(options, api_beside=False, obstacle="they were not built").config
    with pytest.raises(ConfigurationError, match="--kv-cache-dtype int8, fp8 and int4 are not .* they were not built"):
        on_processor(config, torch_alone("they were not built"))


def test_an_instruction_set_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    if OBSTACLE is not None:
        pytest.skip(OBSTACLE)
    monkeypatch.setattr(native, "instruction_sets", lambda: ["portable"])
    with pytest.raises(ConfigurationError, match="avx512 is not possible here; there are portable"):
        notes(instruction_set="avx512")


@pytest.mark.skipif(OBSTACLE is not None, reason=str(OBSTACLE))
@pytest.mark.usefixtures("any_disk")
def test_a_second_start_maps_what_the_first_one_packed(tmp_path: Path) -> None:
    # Without the model that drafts, which has a file of its own.
    options = {"quantization": "int4", "speculative": "off"}
    first, second = (built(**options, packed_cache=str(tmp_path)) for _ in range(2))
    (file,) = tmp_path.iterdir()
    assert any(str(file) in note for note in first.notes) and not any(str(file) in note for note in second.notes)
    assert [engine.stages[1].stage for engine in (first, second)] == ["load and pack weights", "map packed weights"]
    assert built(**options, packed_cache="off").stages[1].stage == "load and pack weights"
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.skipif(OBSTACLE is not None, reason=str(OBSTACLE))
@pytest.mark.usefixtures("any_disk")
@pytest.mark.parametrize("quantization", ["none", "int4"])
def test_mapped_weights_give_the_same_bits(tmp_path: Path, quantization: str) -> None:
    params = SamplingParams(max_tokens=8, temperature=0, ignore_eos=True, logprobs=3)
    found = []
    for folder in ("off", str(tmp_path), str(tmp_path)):
        llm = LLM("haiku", quantization=quantization, packed_cache=folder, threads=1)
        (output,) = llm.generate([[300, 301, 302]], params)
        found.append((output.token_ids, output.logprobs))
    assert found[0] == found[1] == found[2]
