"""Prefixes on a disk: after a restart they are read instead of computed, and no bit of an answer changes by it."""

import gc
import random
import shutil
import weakref
from pathlib import Path
from typing import Any

import pytest

from penstock import LLM, SamplingParams
from penstock.core.errors import ConfigurationError
from penstock.kernels.cpu.native import OBSTACLE
from penstock.runtime import tiers
from support.waiting import PATIENCE, until

pytestmark = pytest.mark.skipif(OBSTACLE is not None, reason=str(OBSTACLE))

MODES: dict[str, dict[str, Any]] = {
    "bfloat16": {"speculative": "off"},
    "drafts of a model": {},
    "int8": {"quantization": "int8", "kv_cache_dtype": "int8", "speculative": "off"},
    "int4 cache": {"kv_cache_dtype": "int4", "speculative": "off"},
}
SHARED = [random.Random(0).randrange(300, 4096) for _ in range(200)]
PROMPTS = [
    {"prompt_token_ids": SHARED + [random.Random(1 + each).randrange(300, 4096) for _ in range(37)]}
    for each in range(4)
]
PARAMS = SamplingParams(max_tokens=12, temperature=0.7, seed=5, logprobs=2, ignore_eos=True)
# 16 tokens a block, and the last token of a prompt is always computed.
WHOLE = 224


def said(llm: LLM, prompts: list[Any] = PROMPTS) -> list[Any]:
    found = llm.generate(prompts, PARAMS)
    assert llm.flush(600.0)
    return [(each.token_ids, each.logprobs) for each in found]


def computed(llm: LLM) -> int:
    return llm.load.prefill_tokens


@pytest.mark.parametrize("mode", MODES)
def test_a_restart_changes_no_bit_and_computes_little(mode: str, tmp_path: Path) -> None:
    options = {**MODES[mode], "max_model_len": 512, "max_num_seqs": 2}
    plain = said(LLM("haiku", **options))
    folder = str(tmp_path / "kv")
    first = LLM("haiku", kv_disk=folder, **options)
    assert said(first) == plain
    again = LLM("haiku", kv_disk=folder, **options)
    assert said(again) == plain
    assert computed(first) > 200 + 4 * 13
    assert computed(again) == sum(len(each["prompt_token_ids"]) - WHOLE for each in PROMPTS)


def test_a_model_that_is_let_go_writes_what_waits_and_frees_its_pool(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiers, "_LAST_SECONDS", PATIENCE)
    options: dict[str, Any] = {"max_model_len": 512, "speculative": "off", "kv_disk": str(tmp_path)}
    first = LLM("haiku", **options)
    plain = [(each.token_ids, each.logprobs) for each in first.generate(PROMPTS, PARAMS)]
    pool = weakref.ref(first._core.executor._reporter._tiers._pool)  # type: ignore[attr-defined]
    assert pool() is not None
    del first
    gc.collect()
    until(lambda: pool() is None)
    again = LLM("haiku", **options)
    assert said(again) == plain
    assert computed(again) == sum(len(each["prompt_token_ids"]) - WHOLE for each in PROMPTS)


def files_in(folder: Path) -> list[Path]:
    return sorted(folder.glob("1-*/??/*.kv"))


def test_files_that_are_spoiled_are_computed_again(tmp_path: Path) -> None:
    options: dict[str, Any] = {"max_model_len": 512, "speculative": "off", "kv_disk": str(tmp_path)}
    plain = said(LLM("haiku", **options))
    files, luck = files_in(tmp_path), random.Random(3)
    assert files
    for path in luck.sample(files, len(files) // 2):
        content = bytearray(path.read_bytes())
        content[luck.randrange(len(content))] ^= 0x10
        path.write_bytes(content)
    again = LLM("haiku", **options)
    assert said(again) == plain
    # And what was computed again is written again.
    third = LLM("haiku", **options)
    assert said(third) == plain and computed(third) < computed(again)


def test_a_folder_that_goes_meanwhile_is_a_miss(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    options: dict[str, Any] = {"max_model_len": 512, "speculative": "off", "kv_disk": str(tmp_path / "kv")}
    plain = said(LLM("haiku", **options))
    again = LLM("haiku", **options)
    shutil.rmtree(tmp_path / "kv")
    (tmp_path / "kv").write_text("not a folder")
    assert said(again) == plain
    assert "--kv-disk cannot be written to" in caplog.text


def test_another_model_has_a_folder_of_its_own(tmp_path: Path) -> None:
    options: dict[str, Any] = {"max_model_len": 512, "speculative": "off"}
    said(LLM("haiku", kv_disk=str(tmp_path), **options))
    other = {**options, "quantization": "int8"}
    assert said(LLM("haiku", kv_disk=str(tmp_path), **other)) == said(LLM("haiku", **other))
    assert len(list(tmp_path.glob("1-*"))) == 2


def test_the_pool_that_is_too_small_for_all_gets_them_back(tmp_path: Path) -> None:
    """Two prompts in turn, in a pool that has room for one."""
    others = [{"prompt_token_ids": list(reversed(each["prompt_token_ids"]))} for each in PROMPTS[:1]]
    options: dict[str, Any] = {"max_model_len": 256, "max_num_seqs": 1, "speculative": "off"}
    small = {**options, "kv_cache_memory": 17 * 65536}
    plain = LLM("haiku", **options)
    llm = LLM("haiku", kv_disk=str(tmp_path), **small)
    for prompts in (PROMPTS[:1], others, PROMPTS[:1]):
        assert said(llm, prompts) == said(plain, prompts)
    assert computed(llm) == 2 * 237 + 237 - WHOLE


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"kv_disk": "/dev/null/kv"}, "cannot be used"),
        ({"kv_disk": "kv", "kv_disk_size": 100}, "one block of this model takes"),
        ({"kv_disk_size": 1 << 30}, "has a size and no folder"),
        ({"kv_disk": "kv", "enable_prefix_caching": False}, "keeps no prefix"),
    ],
)
def test_what_cannot_be_is_told(
    options: dict[str, Any], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigurationError, match=words):
        LLM("haiku", max_model_len=256, **options)
