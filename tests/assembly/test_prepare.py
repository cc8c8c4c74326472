"""What a model's files say before an engine is built."""

from pathlib import Path

import pytest

from penstock.assembly.prepare import prepare
from penstock.configuration.options import EngineOptions
from penstock.core.kv_policy import POLICY_KINDS, WEIGHED
from support.checkpoints import make


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return make("llama", tmp_path / "llama")


def served_name(model: str) -> str:
    return prepare(EngineOptions.of(model=model), api_beside=False).model_info(None).name


def test_a_bundled_model_is_served_under_its_name(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "haiku").symlink_to(checkpoint)
    monkeypatch.chdir(tmp_path)
    assert served_name("haiku") == "haiku"
    # The folder of that name is another model.
    assert served_name("./haiku") == "llama"


def test_what_the_files_of_a_draft_say_otherwise_is_told_too(checkpoint: Path, tmp_path: Path) -> None:
    draft = make("llama", tmp_path / "draft")
    (draft / "model.safetensors").rename(draft / "weights.safetensors")
    options = EngineOptions.of(model=str(checkpoint), draft_model=str(draft), speculative="draft", threads=1)
    (reason,) = prepare(options, api_beside=False).found
    assert (reason.setting, reason.value) == ("draft model's weight files", "weights.safetensors")


@pytest.mark.parametrize(
    ("family", "kinds", "why"),
    [
        ("llama", POLICY_KINDS, ""),
        ("gpt_neox", POLICY_KINDS, ""),
        ("gpt2", WEIGHED, "an embedding for each position"),
        ("ministral3", WEIGHED, "queries depend on their positions"),
        ("gemma3", WEIGHED, "layers have windows of their own"),
    ],
)
def test_which_policies_for_contexts_a_family_allows(tmp_path: Path, family: str, kinds: object, why: str) -> None:
    options = EngineOptions.of(model=str(make(family, tmp_path / family)), speculative="ngram", threads=1)
    limits = prepare(options, api_beside=False, obstacle=None).config.scheduler.kv_policies
    assert limits.kinds == kinds and why in limits.why_not
