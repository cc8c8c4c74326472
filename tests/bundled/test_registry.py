"""The models of the package: found by exactly their names, and complete."""

from pathlib import Path

import pytest

from penstock import LLM, SamplingParams
from penstock.bundled.registry import DEFAULT, FOLDER, bundled_models, find_bundled
from penstock.core.errors import ConfigurationError, ModelFileError
from penstock.llm import chat_encoder
from penstock.loading.checkpoint import open_checkpoint
from penstock.models.declaration import ModelDeclaration
from penstock.models.registry import declare
from penstock.text.tokenizer import find_tokenizer

NAMES = ("haiku", "haiku-draft")


def declaration_of(name: str) -> ModelDeclaration:
    """What the files of a bundled model say, with every tensor found."""
    checkpoint = open_checkpoint(FOLDER / name)
    declaration = declare(checkpoint.config)
    assert len(checkpoint.locate(declaration)) == len(checkpoint.tensors)
    assert {entry.dtype for entry in checkpoint.tensors.values()} == {"bfloat16"}
    return declaration


def test_the_names_are_exact() -> None:
    assert tuple(model.name for model in bundled_models()) == NAMES
    assert bundled_models()[0].name == DEFAULT
    for name in NAMES:
        assert find_bundled(name) in bundled_models()
    assert not any(map(find_bundled, ("Haiku", "haiku ", "./haiku", "haiku/", "", "owner/haiku")))


def test_an_installation_without_the_files_says_so(tmp_path: Path) -> None:
    (tmp_path / "haiku").mkdir()
    model, draft = bundled_models(tmp_path)
    assert model.installed() == tmp_path / "haiku"
    with pytest.raises(ModelFileError, match=r"haiku-draft is missing.*install Penstock again"):
        draft.installed()


@pytest.mark.parametrize("name", NAMES)
def test_a_bundled_model_is_complete(name: str) -> None:
    declaration = declaration_of(name)
    assert (FOLDER / name / "README.md").is_file()
    tokenizer = find_tokenizer(FOLDER / name, declaration.vocab_size)
    assert tokenizer is not None
    assert chat_encoder(tokenizer).encode([{"role": "user", "content": "Write a haiku about rain."}])


def test_the_draft_is_small_and_speaks_the_same_tokens() -> None:
    target, draft = map(declaration_of, NAMES)
    assert draft.num_parameters * 3 < target.num_parameters < 12_000_000
    assert draft.vocab_size == target.vocab_size
    first, second = ((FOLDER / name / "tokenizer.json").read_bytes() for name in NAMES)
    assert first == second


def test_a_template_in_a_file_is_used_in_python(tmp_path: Path) -> None:
    file = tmp_path / "mine.jinja"
    file.write_text("{% for m in messages %}[{{ m.role }}] {{ m.content }}{% endfor %}")
    llm = LLM("haiku", chat_template=str(file), threads=1, kv_cache_memory=64 << 20, load_format="dummy")
    told = [{"role": "developer", "content": "Rhyme."}, {"role": "user", "content": "Rain."}]
    (completion,) = llm.chat(told, SamplingParams(max_tokens=1))
    assert llm.tokenizer is not None
    assert llm.tokenizer.decode(completion.prompt_token_ids) == "[system] Rhyme.[user] Rain."
    with pytest.raises(ConfigurationError, match="no such file"):
        LLM("haiku", chat_template="none.jinja")


def test_it_answers_in_python_by_its_name() -> None:
    llm = LLM("haiku", threads=1, kv_cache_memory=64 << 20)
    params = SamplingParams(max_tokens=100, temperature=0)
    (completion,) = llm.chat([{"role": "user", "content": "Write a haiku about rain."}], params)
    assert completion.text.strip()
    assert completion.finish_reason == "stop"
