"""A tokenizer that is written into a GGUF file is the same one when it is read."""

import json
from pathlib import Path

import pytest

from penstock.core.errors import TokenizerError
from penstock.text.chat_template import load_chat_template
from penstock.text.gguf_metadata import tokenizer_metadata
from penstock.text.gguf_tokenizer import WORDS, gguf_tokenizer
from penstock.text.tokenizer import load_tokenizer
from support.gguf_tokenizers import AWKWARD, GGUF_KINDS, folder_of
from support.tokenizers_made import make_raw, save


@pytest.mark.parametrize("kind", GGUF_KINDS)
def test_texts_are_encoded_as_by_the_original(tmp_path: Path, kind: str) -> None:
    original = load_tokenizer(folder_of(kind, tmp_path / "model"))
    rows = original.vocab_size + 5
    metadata = tokenizer_metadata(original, rows)
    assert len(metadata["tokenizer.ggml.tokens"]) == rows == len(metadata["tokenizer.ggml.token_type"])
    found = gguf_tokenizer(metadata, tmp_path)
    assert found is not None
    for text in AWKWARD:
        for special in (False, True):
            assert found.encode(text, special) == original.encode(text, special), text
        ids = original.encode(text, False)
        assert found.decode(ids) == original.decode(ids), text
    assert found.eos_token == original.eos_token and found.bos_token == original.bos_token
    # Of several rules that give the same tokens of a small vocabulary, it is the tokenizer's own.
    if kind in WORDS:
        assert metadata["tokenizer.ggml.pre"] == kind


def test_tokens_that_the_model_has_no_row_for_are_left_out(tmp_path: Path) -> None:
    """llama.cpp refuses a file with more tokens than rows."""
    folder = folder_of("byte_level", tmp_path / "model")
    rows = load_tokenizer(folder).vocab_size
    raw = json.loads((folder / "tokenizer.json").read_text())
    raw["added_tokens"].append({**raw["added_tokens"][0], "id": rows, "content": "<image>"})
    (folder / "tokenizer.json").write_text(json.dumps(raw))
    metadata = tokenizer_metadata(load_tokenizer(folder), rows)
    assert len(metadata["tokenizer.ggml.tokens"]) == rows and "<image>" not in metadata["tokenizer.ggml.tokens"]


def test_templates_are_written_by_name(tmp_path: Path) -> None:
    folder = folder_of("byte_level", tmp_path / "model")
    (folder / "chat_template.jinja").write_text("{{ messages[0].content }}")
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "tool_use.jinja").write_text("{{ tools }}")
    original = load_tokenizer(folder)
    found = gguf_tokenizer(tokenizer_metadata(original, original.vocab_size), tmp_path)
    assert found is not None and load_chat_template(found).source == load_chat_template(original).source


def test_words_that_have_no_name_are_refused(tmp_path: Path) -> None:
    raw = json.loads(make_raw("byte_level").to_str())
    split = {"type": "Split", "pattern": {"Regex": "[aeiou]"}, "behavior": "Isolated", "invert": False}
    raw["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [split, raw["pre_tokenizer"]]}
    folder = save(make_raw("byte_level"), tmp_path / "model")
    (folder / "tokenizer.json").write_text(json.dumps(raw))
    with pytest.raises(TokenizerError, match="no name that is known here; these are: gpt-2"):
        tokenizer_metadata(load_tokenizer(folder), 1000)


def test_a_tokenizer_of_words_is_refused(tmp_path: Path) -> None:
    folder = save(make_raw("plain"), tmp_path / "model")
    raw = json.loads((folder / "tokenizer.json").read_text())
    raw["model"] = {"type": "WordLevel", "vocab": {"a": 0, "b": 1}, "unk_token": "a"}
    raw["added_tokens"] = []
    (folder / "tokenizer.json").write_text(json.dumps(raw))
    with pytest.raises(TokenizerError, match="WordLevel, only for BPE"):
        tokenizer_metadata(load_tokenizer(folder), 1000)
