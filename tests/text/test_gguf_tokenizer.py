"""Tokenizers of GGUF files encode as those that they came from."""

import json
from pathlib import Path
from typing import Any

import gguf
import pytest
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from penstock.bundled.registry import find_bundled
from penstock.core.errors import TokenizerError
from penstock.loading.gguf import read_gguf
from penstock.text.gguf_tokenizer import _PATTERNS, gguf_tokenizer
from penstock.text.tokenizer import load_tokenizer
from support.gguf_files import write_tokenizer
from support.tokenizers_made import CORPUS, SPECIAL, make_raw, save

AWKWARD = [
    "", " ", "  ", "a", " a", "a ", "the quick brown fox", "The QUICK  brown\tfox\r\n\r\n jumps", "I'm, you're, HE'LL",
    "1234567890 12 345 6,789.01", "naïve café, e\u0301tude", "日本語 テスト 👩‍🚀🚀", "\u00a0\u2003x\u200b",
    "<s>the</s> <|im_start|>",
    "two words<think>", "\n\n\n", "   indented\n   text   ", "a\u0000b", "▁▁ _", "()[]{}!!!???...\n", "ﬁ Ⅷ ½", "<0x41>",
]  # fmt: skip


def written(folder: Path, file: Path) -> Path:
    writer = gguf.GGUFWriter(file, "llama")
    write_tokenizer(writer, folder)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def split_raw(named: str) -> Tokenizer:
    """One whose words are those of a published family."""
    raw = Tokenizer(models.BPE(ignore_merges=named == "llama-bpe"))
    split = pre_tokenizers.Split(Regex(_PATTERNS[named]), "isolated")
    raw.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(False, use_regex=False)])
    if named == "qwen2":
        raw.normalizer = normalizers.NFC()
    raw.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=700, special_tokens=list(SPECIAL), show_progress=False, initial_alphabet=alphabet
    )
    raw.train_from_iterator([*CORPUS, *AWKWARD] * 3, trainer)
    raw.add_tokens([AddedToken("<think>", special=False), AddedToken("two words", special=False)])
    return raw


def folder_of(kind: str, path: Path) -> Path:
    if kind == "haiku":
        bundled = find_bundled("haiku")
        assert bundled is not None
        return bundled.installed()
    raw = split_raw(kind) if kind in _PATTERNS else make_raw(kind)
    content = json.loads(raw.to_str())
    for token in content["added_tokens"]:
        # A file does not say of a token that it is looked for in normalized text.
        token["normalized"] = False
    return save(Tokenizer.from_str(json.dumps(content)), path)


@pytest.mark.parametrize("kind", ["byte_level", "llama2", "gemma", "llama-bpe", "qwen2", "haiku"])
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
        ("model", "t5", "kind 't5'"),
        ("pre", "chatglm", "as 'chatglm' does"),
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


def test_a_file_without_a_tokenizer_has_none(tmp_path: Path) -> None:
    assert gguf_tokenizer({"general.architecture": "llama"}, tmp_path) is None
