"""Tokenizers of GGUF files encode as those that they came from."""

import json
from pathlib import Path
from typing import Any

import gguf
import pytest

from penstock.core.errors import TokenizerError
from penstock.loading.gguf import read_gguf
from penstock.text.gguf_tokenizer import gguf_tokenizer
from penstock.text.tokenizer import load_tokenizer
from support.gguf_files import finish, write_tokenizer
from support.gguf_tokenizers import AWKWARD, GGUF_KINDS, folder_of


def written(folder: Path, file: Path) -> Path:
    writer = gguf.GGUFWriter(file, "llama")
    write_tokenizer(writer, folder)
    finish(writer)
    return file


@pytest.mark.parametrize("kind", GGUF_KINDS)
def test_texts_are_encoded_as_by_the_original(tmp_path: Path, kind: str) -> None:
    folder = folder_of(kind, tmp_path / "model")
    original = load_tokenizer(folder)
    file = written(folder, tmp_path / "a.gguf")
    found = gguf_tokenizer(read_gguf(file).metadata, file)
    assert found is not None and found.vocab_size == original.vocab_size
    for text in AWKWARD:
        for special in (False, True):
            assert found.encode(text, special) == original.encode(text, special), text
        ids = original.encode(text, False)
        for skipped in (False, True):
            assert found.decode(ids, skipped) == original.decode(ids, skipped), text
    assert found.eos_token == original.eos_token and found.bos_token == original.bos_token
    assert found.table.special == original.table.special


def values(tmp_path: Path) -> dict[str, Any]:
    file = written(folder_of("byte_level", tmp_path / "model"), tmp_path / "a.gguf")
    return dict(read_gguf(file).metadata)


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("model", "rwkv", "kind 'rwkv'"),
        ("pre", "chatglm", "as 'chatglm' does"),
        ("pre", "default", "does not name"),
        ("pre", None, "does not name"),
        ("tokens", None, "no list tokenizer.ggml.tokens"),
        ("tokens", ["a", "a"], "kinds"),
        ("token_type", [], "token twice"),
        ("merges", ["no way"], "'no way'"),
        ("eos_token_id", 10**9, "names token 1000000000 as eos"),
    ],
)
def test_what_makes_no_tokenizer_is_refused(tmp_path: Path, name: str, value: Any, says: str) -> None:
    metadata = {**values(tmp_path), f"tokenizer.ggml.{name}": value}
    if says == "token twice":
        metadata["tokenizer.ggml.tokens"] = ["a", "a"]
    with pytest.raises(TokenizerError, match=says):
        gguf_tokenizer(metadata, tmp_path / "a.gguf")


def test_special_tokens_of_too_many_beginnings_are_refused(tmp_path: Path) -> None:
    many = ["<" + "1" * count + "0" for count in range(1000)]
    metadata = values(tmp_path)
    metadata["tokenizer.ggml.tokens"] = [*metadata["tokenizer.ggml.tokens"], *many]
    metadata["tokenizer.ggml.token_type"] = [*metadata["tokenizer.ggml.token_type"], *[3] * len(many)]
    with pytest.raises(TokenizerError, match="cannot be put together"):
        gguf_tokenizer(metadata, tmp_path / "a.gguf")


def test_a_token_without_end_is_refused(tmp_path: Path) -> None:
    metadata = values(tmp_path)
    metadata["tokenizer.ggml.tokens"] = ["a" * 5000, *metadata["tokenizer.ggml.tokens"][1:]]
    with pytest.raises(TokenizerError, match="more than 1024 characters"):
        gguf_tokenizer(metadata, tmp_path / "a.gguf")


def test_what_files_leave_out_is_what_others_take_it_for(tmp_path: Path) -> None:
    metadata = values(tmp_path)
    tokens = [*metadata["tokenizer.ggml.tokens"], "", ""]
    known = {
        **metadata,
        "general.architecture": "qwen3",
        "tokenizer.ggml.pre": None,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [*metadata["tokenizer.ggml.token_type"], 5, 5],
        "tokenizer.ggml.padding_token_id": 2**32 - 1,
        "tokenizer.chat_template": "plain",
        "tokenizer.chat_templates": ["tool_use", "gone"],
        "tokenizer.chat_template.tool_use": "tools",
    }
    found = gguf_tokenizer(known, tmp_path / "a.gguf")
    assert found is not None and found.vocab_size == len(tokens) and "pad_token" not in found.special_tokens
    assert found.config["chat_template"] == [
        {"name": "default", "template": "plain"},
        {"name": "tool_use", "template": "tools"},
    ]


@pytest.mark.parametrize(
    ("kind", "others"), [("llama-bpe", ("llama3", "llama-v3")), ("smaug-bpe", ("dbrx", "glm4", "chatglm-bpe"))]
)
def test_rules_that_have_several_names(tmp_path: Path, kind: str, others: tuple[str, ...]) -> None:
    file = written(folder_of(kind, tmp_path / "model"), tmp_path / "a.gguf")
    metadata = read_gguf(file).metadata
    first, *found = (gguf_tokenizer({**metadata, "tokenizer.ggml.pre": name}, file) for name in (kind, *others))
    assert first is not None
    for other in found:
        assert other is not None and all(other.encode(text, True) == first.encode(text, True) for text in AWKWARD)


@pytest.mark.parametrize(
    ("kind", "text", "pieces"),
    [
        ("deepseek-llm", "a 12b\r\n\n x  y ", ["a", " ", "12", "b", "\r", "\n", "\n", " x", " ", " y", " "]),
        # Each pattern splits what those before it found, too: the one of punctuation has the letters of ASCII.
        ("deepseek-llm", "naïve e\u0301té Ǆ", ["na", "ï", "ve", " e", "\u0301", "t", "é", " Ǆ"]),
        ("deepseek-llm", "日本語 テスト한국어。 abc", ["日本語", " ", "テスト한국어", "。", " abc"]),
        ("deepseek-llm", "Ծով ծով, ქართ Ⴀ", ["Ծ", "ով ծով", ",", " ", "ქართ", " ", "Ⴀ"]),
        (
            "deepseek-llm",
            "I'm (x+y)=$2! 👍🏽 go",
            ["I", "'", "m", " (", "x", "+", "y", ")=$", "2", "!", " 👍🏽", " go"],
        ),
        ("deepseek-coder", "a 12b\r\n\n x  y ", ["a", " ", "1", "2", "b", "\r", "\n", "\n", " x", " ", " y", " "]),
        ("deepseek-coder", "naïve e\u0301té Ǆ", ["naïve", " e", "\u0301", "té", " Ǆ"]),
        ("deepseek-coder", "日本語 テスト한국어。 abc", ["日本語", " ", "テスト한국어", "。", " abc"]),
        ("deepseek-coder", "Ծով ծով, ქართ Ⴀ", ["Ծով", " ծով", ",", " ", "ქართ", " ", "Ⴀ"]),
        (
            "deepseek-coder",
            "I'm (x+y)=$2! 👍🏽 go",
            ["I", "'", "m", " (", "x", "+", "y", ")", "=$", "2", "!", " 👍🏽", " go"],
        ),
    ],
)
def test_words_are_those_that_the_rule_names(tmp_path: Path, kind: str, text: str, pieces: list[str]) -> None:
    """Pieces are asserted, since a small vocabulary would hide some of them in its tokens."""
    file = written(folder_of(kind, tmp_path / "model"), tmp_path / "a.gguf")
    found = gguf_tokenizer(read_gguf(file).metadata, file)
    assert found is not None
    assert found.words(text) == pieces


def test_sentence_piece_has_its_usual_special_tokens(tmp_path: Path) -> None:
    file = written(folder_of("llama2", tmp_path / "model"), tmp_path / "a.gguf")
    metadata = {name: value for name, value in read_gguf(file).metadata.items() if not name.endswith("_id")}
    del metadata["tokenizer.ggml.add_bos_token"]
    found = gguf_tokenizer(metadata, file)
    assert found is not None and (found.bos_token, found.eos_token) == ("<s>", "</s>")
    assert found.encode("fox")[0] == 1


def test_a_file_without_a_tokenizer_has_none(tmp_path: Path) -> None:
    assert gguf_tokenizer({"general.architecture": "llama"}, tmp_path) is None
    for kind in ("none", "no_vocab"):
        assert gguf_tokenizer({"tokenizer.ggml.model": kind}, tmp_path) is None


def test_characters_are_merged_by_a_list(tmp_path: Path) -> None:
    """As Gemma 4's files have it, whose original is of its predecessors' kind but for what orders merges."""
    folder = folder_of("gemma", tmp_path / "model")
    original, content = load_tokenizer(folder), json.loads((folder / "tokenizer.json").read_text())
    file = written(folder, tmp_path / "a.gguf")
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in content["model"]["merges"]]
    metadata = {**read_gguf(file).metadata, "tokenizer.ggml.model": "gemma4", "tokenizer.ggml.merges": merges}
    del metadata["tokenizer.ggml.scores"]
    found = gguf_tokenizer(metadata, file)
    assert found is not None
    for text in AWKWARD:
        ids = original.encode(text, False)
        assert found.encode(text, False) == ids and found.decode(ids, False) == original.decode(ids, False)
