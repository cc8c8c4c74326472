"""What ends an output: all tokens that a model's files name for it, whichever file that is."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from penstock import LLM, SamplingParams
from penstock.assembly.prepare import prepare
from penstock.configuration.options import EngineOptions
from penstock.core.errors import ModelFileError
from penstock.loading.end_tokens import EndTokens
from support.checkpoints import EOS, VOCAB_SIZE, make
from support.gguf_files import write_gguf

GENERATION, CONFIG, TOKENIZER = "generation_config.json", "config.json", "tokenizer_config.json"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return make("llama", tmp_path / "llama")


def write(file: Path, values: Mapping[str, Any]) -> None:
    content = json.loads(file.read_text()) if file.exists() else {}
    file.write_text(json.dumps({**content, **values}))


def found(path: Path) -> EndTokens:
    prepared = prepare(EngineOptions.of(model=str(path), threads=1), api_beside=False)
    return prepared.end_tokens(prepared.load_tokenizer())


@pytest.mark.parametrize("file", [GENERATION, CONFIG])
@pytest.mark.parametrize("value", ["</s>", 1.5, True, -1, 2**31, [2, "3"], [2, -1], [None], {"id": 2}])
def test_what_is_no_token_id_names_the_file(model: Path, file: str, value: object) -> None:
    write(model / file, {"eos_token_id": value})
    with pytest.raises(ModelFileError, match=f"^{file}: eos_token_id"):
        found(model)


@pytest.mark.parametrize(
    ("generation", "config", "token", "expected"),
    [
        (2, 2, "</s>", (2,)),
        (5, 6, "</s>", (5, 6, 2)),
        ([5, 6], 6, "<s>", (5, 6, 1)),
        ([], [], "</s>", (2,)),
        (None, None, "</s>", (2,)),
        (None, 7, None, (7,)),
        (None, None, None, ()),
        (None, 7, "<not there>", (7,)),
    ],
)
def test_the_union_of_what_files_say(
    model: Path, generation: object, config: object, token: str | None, expected: tuple[int, ...]
) -> None:
    write(model / GENERATION, {"eos_token_id": generation})
    write(model / CONFIG, {"eos_token_id": config})
    write(model / TOKENIZER, {"eos_token": token})
    assert found(model).ids == expected


def test_each_file_is_named_with_what_it_says(model: Path) -> None:
    write(model / GENERATION, {"eos_token_id": [5, 6]})
    write(model / CONFIG, {"eos_token_id": VOCAB_SIZE})
    reason = found(model).reason
    assert reason.value.endswith("</s> (2)") and "(5), " in reason.value
    for part in ("generation_config.json: 5, 6", f"config.json: {VOCAB_SIZE}", "tokenizer: </s>", "beyond"):
        assert part in reason.why
    (model / GENERATION).unlink()
    write(model / CONFIG, {"eos_token_id": None})
    write(model / TOKENIZER, {"eos_token": "<gone>"})
    assert "<gone>, which it has no id for" in found(model).reason.why
    write(model / TOKENIZER, {"eos_token": None})
    assert found(model).reason.value == "none" and "max_tokens" in found(model).reason.why


def test_another_tokenizer_has_its_own(model: Path, tmp_path: Path) -> None:
    other = make("llama", tmp_path / "other")
    write(other / TOKENIZER, {"eos_token": "<unk>"})
    prepared = prepare(EngineOptions.of(model=str(model), tokenizer=str(other), threads=1), api_beside=False)
    assert prepared.end_tokens(prepared.load_tokenizer()).ids == (EOS, 3)


def test_a_model_of_images_too_names_some_for_its_text(tmp_path: Path) -> None:
    path = make("gemma3", tmp_path / "gemma")
    inner = json.loads((path / CONFIG).read_text())
    outer = {"architectures": ["Gemma3ForConditionalGeneration"], "text_config": {**inner, "eos_token_id": 9}}
    (path / CONFIG).write_text(json.dumps({**outer, "eos_token_id": [1, 6]}))
    (path / GENERATION).unlink()
    assert found(path).ids == (1, 6, 9, EOS)
    assert "text_config in config.json: 9" in found(path).reason.why


def test_of_a_gguf_file_its_metadata_are_named(tmp_path: Path) -> None:
    file = write_gguf(make("qwen3", tmp_path / "model"), tmp_path / "a.gguf")
    assert found(file).ids == (EOS,)
    assert found(file).reason.why == "a.gguf: 2; tokenizer: </s>"


@pytest.mark.parametrize("file", [GENERATION, CONFIG, TOKENIZER])
def test_an_output_ends_at_a_token_that_only_one_file_names(model: Path, file: str) -> None:
    prompt, long = [5, 9, 200, 31], SamplingParams(temperature=0.0, max_tokens=12)

    def generated() -> tuple[list[int], str | None]:
        llm = LLM(str(model), threads=1, max_model_len=64, max_num_seqs=1)
        sample = llm.generate([prompt], long)[0].samples[0]
        return list(sample.token_ids), sample.finish_reason

    def without_ends() -> None:
        for each in (GENERATION, CONFIG):
            write(model / each, {"eos_token_id": None})
        write(model / TOKENIZER, {"eos_token": None})

    without_ends()
    tokens, reason = generated()
    assert reason == "length"
    end = tokens[len(tokens) // 2]
    vocabulary = json.loads((model / "tokenizer.json").read_text())["model"]["vocab"]
    texts = {index: text for text, index in vocabulary.items()}
    write(model / file, {"eos_token": texts[end]} if file == TOKENIZER else {"eos_token_id": end})
    assert generated() == (tokens[: tokens.index(end) + 1], "stop")
