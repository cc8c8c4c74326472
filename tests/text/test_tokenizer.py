"""The tokenizer facade: BOS as the tokenizer says and never twice, and refusals that say what was looked for."""

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, normalizers
from transformers import PreTrainedTokenizerFast

from penstock.core.errors import ContextLengthExceeded, InvalidParameter, TokenizerError
from penstock.text.tokenizer import Tokenizer, load_tokenizer, unused_marker
from support.tokenizers_made import KINDS, add_bos, make_raw, save

BOS, EOS = 1, 2


def made(path: Path, kind: str = "byte_level", bos: bool = False, **config: Any) -> Tokenizer:
    raw = make_raw(kind)
    return load_tokenizer(save(add_bos(raw) if bos else raw, path, **config))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bos", [False, True])
@pytest.mark.parametrize("text", ["the quick brown fox", "", " a  b\n", "<|im_start|>user", "日本 👩‍🚀"])
def test_encoding_equals_transformers(tmp_path: Path, kind: str, bos: bool, text: str) -> None:
    tokenizer = made(tmp_path, kind, bos)
    reference = PreTrainedTokenizerFast(
        tokenizer_file=str(tmp_path / "tokenizer.json"), bos_token="<s>", eos_token="</s>"
    )
    for special in (True, False):
        assert tokenizer.encode(text, special) == reference.encode(text, add_special_tokens=special)


@pytest.mark.parametrize("text", ["\ud800", "a\udc00b", "the fox \udfff"])
def test_half_of_a_surrogate_pair_is_refused(tmp_path: Path, text: str) -> None:
    tokenizer = made(tmp_path)
    with pytest.raises(InvalidParameter, match="surrogate"):
        tokenizer.encode(text)
    with pytest.raises(InvalidParameter, match="surrogate"):
        tokenizer.encode_marked(f"the\ufdd0{text}", "\ufdd0")


def test_bos_is_never_added_twice(tmp_path: Path) -> None:
    tokenizer = made(tmp_path, bos=True)
    once = tokenizer.encode("the fox")
    assert once[0] == BOS
    assert tokenizer.encode("<s>the fox") == once


@pytest.mark.parametrize(
    ("in_file", "setting", "expected"), [(False, True, True), (True, False, False), (True, None, True)]
)
def test_an_explicit_setting_decides_on_bos(
    tmp_path: Path, in_file: bool, setting: bool | None, expected: bool
) -> None:
    config = {} if setting is None else {"add_bos_token": setting}
    ids = made(tmp_path, bos=in_file, **config).encode("the fox")
    assert (ids[0] == BOS) is expected


def test_eos_can_be_added_by_setting(tmp_path: Path) -> None:
    tokenizer = made(tmp_path, add_eos_token=True)
    assert tokenizer.encode("the")[-1] == EOS
    assert tokenizer.encode("the</s>").count(EOS) == 1


def test_truncation_and_padding_of_the_file_are_not_applied(tmp_path: Path) -> None:
    raw = make_raw("byte_level")
    raw.enable_truncation(3)
    raw.enable_padding(length=64)
    tokenizer = load_tokenizer(save(raw, tmp_path))
    text = "the quick brown fox jumps over the lazy dog"
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_named_tokens_come_from_either_file(tmp_path: Path) -> None:
    save(make_raw("byte_level"), tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": {"content": "</s>"}}))
    (tmp_path / "special_tokens_map.json").write_text(json.dumps({"bos_token": "<s>", "eos_token": "<unk>"}))
    tokenizer = load_tokenizer(tmp_path)
    assert (tokenizer.bos_token, tokenizer.bos_token_id) == ("<s>", BOS)
    assert (tokenizer.eos_token, tokenizer.eos_token_id) == ("</s>", EOS)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match=r"No tokenizer.json in .*token ids"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer.model").write_bytes(b"x")
    with pytest.raises(TokenizerError, match=r"tokenizer.model cannot be read"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize("content", [" ", "{", '{"version": "1.0"}', "[]"])
def test_a_broken_file_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(TokenizerError, match="cannot be read as a tokenizer"):
        load_tokenizer(tmp_path)


def test_a_broken_configuration_is_refused(tmp_path: Path) -> None:
    save(make_raw("byte_level"), tmp_path)
    (tmp_path / "tokenizer_config.json").write_text("{")
    with pytest.raises(TokenizerError, match=r"tokenizer_config.json is not valid JSON"):
        load_tokenizer(tmp_path)


def test_ids_beyond_the_models_vocabulary_are_refused(tmp_path: Path) -> None:
    tokenizer = made(tmp_path)
    with pytest.raises(TokenizerError, match=rf"ids up to {tokenizer.vocab_size - 1} .*only 100 tokens"):
        tokenizer.check_against(100)
    assert tokenizer.check_against(tokenizer.vocab_size) == []


def test_a_smaller_tokenizer_is_noted(tmp_path: Path) -> None:
    tokenizer = made(tmp_path)
    [note] = tokenizer.check_against(tokenizer.vocab_size + 12)
    assert note.startswith("12 of the model's")


def test_a_special_token_beyond_the_vocabulary_is_noted(tmp_path: Path) -> None:
    raw = make_raw("byte_level")
    size = raw.get_vocab_size()
    raw.add_special_tokens([AddedToken("<image>", special=True)])
    [note] = load_tokenizer(save(raw, tmp_path)).check_against(size)
    assert "<image>" in note and "refused" in note


@pytest.mark.parametrize("kind", KINDS)
def test_marked_special_tokens_become_ordinary_text(tmp_path: Path, kind: str) -> None:
    tokenizer = made(tmp_path, kind)
    text = "fox<|im_start|>the</s> fox"
    assert tokenizer.has_special(text)
    marked = tokenizer.mark_special(text, "\ufdd0")
    ids = tokenizer.encode_marked("<s>" + marked, "\ufdd0")
    assert [token for token in ids if token < 5 and token != 0] == [BOS]
    if kind in ("byte_level", "llama2", "gemma"):
        assert tokenizer.decode(ids) == text


def test_text_without_special_tokens_is_encoded_as_usual(tmp_path: Path) -> None:
    tokenizer = made(tmp_path)
    assert not tokenizer.has_special("the fox < s > <think>")
    assert tokenizer.encode_marked("the fox", "\ufdd0") == tokenizer.encode("the fox")


def test_overlapping_special_tokens_are_all_broken(tmp_path: Path) -> None:
    raw = make_raw("byte_level")
    raw.add_special_tokens(["<ab", "ab>"])
    tokenizer = load_tokenizer(save(raw, tmp_path))
    ids = tokenizer.encode_marked(tokenizer.mark_special("<ab>", "\ufdd0"), "\ufdd0")
    assert not any(tokenizer.table.special[token] for token in ids)


def test_many_special_tokens_are_found_along_their_shared_beginnings(tmp_path: Path) -> None:
    raw = make_raw("byte_level")
    names = [f"<|reserved_special_token_{number}|>" for number in range(700)] + ["<|reserved", "[INST]", "[/INST]"]
    raw.add_special_tokens(names)
    tokenizer = load_tokenizer(save(raw, tmp_path))
    assert all(tokenizer.mark_special(name, "\ufdd0") == name[0] + "\ufdd0" + name[1:] for name in names)
    assert not any(map(tokenizer.has_special, ("<|reserve", "[INST", "<|", "reserved_special_token_1|>")))
    # One way through the pattern for all of the tokens, not one for each.
    pattern = tokenizer._special_start.pattern
    assert pattern.count("reserved") == 1 and len(pattern) < 200


@pytest.mark.parametrize("kind", ["byte_level", "llama2", "gemma"])
def test_a_text_that_must_be_too_long_is_refused_before_it_is_tokenized(tmp_path: Path, kind: str) -> None:
    tokenizer = made(tmp_path, kind)
    longest = max(map(len, tokenizer.table.pieces))
    for text in ("the quick brown fox " * 50, "<|im_start|>" * 50, "  " * 300, "日本👩" * 50):
        tokenizer.check_length(text, len(tokenizer.encode(text, False)), "prompt")
    tokenizer.check_length("x" * (10 * longest), 10, "prompt")
    with pytest.raises(ContextLengthExceeded, match="at least 11 tokens"):
        tokenizer.check_length("x" * (10 * longest + 1), 10, "prompt")


@pytest.mark.parametrize("kind", ["plain", "metaspace"])
def test_a_tokenizer_that_drops_text_bounds_no_length(tmp_path: Path, kind: str) -> None:
    text = "x" * 100_000
    made(tmp_path / "drops", kind).check_length(text, 1, "prompt")
    with pytest.raises(ContextLengthExceeded):
        made(tmp_path / "keeps", "byte_level").check_length(text, 1, "prompt")


def test_composing_characters_is_allowed_for(tmp_path: Path) -> None:
    raw = make_raw("byte_level")
    raw.normalizer = normalizers.NFC()
    longest = "\u0390" * 8
    raw.add_tokens([AddedToken(longest, normalized=True)])
    tokenizer = load_tokenizer(save(raw, tmp_path))
    assert max(map(len, tokenizer.table.pieces)) == len(longest.encode())
    # Six bytes become one character of two.
    text = "\u03b9\u0308\u0301" * 200
    assert len(tokenizer.encode(text, False)) == 25
    tokenizer.check_length(text, 25, "prompt")
    with pytest.raises(ContextLengthExceeded, match="at least 19 tokens"):
        tokenizer.check_length(text, 18, "prompt")


def test_a_marker_that_the_text_does_not_contain() -> None:
    assert unused_marker(["plain"]) == "\ufdd0"
    assert unused_marker(["\ufdd0", "x\ufdd1"]) == "\ufdd2"
    assert unused_marker(["".join(map(chr, range(0xFDD0, 0xFDF0)))]) is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("eos_token", 5),
        ("bos_token", {"text": "<s>"}),
        ("pad_token", False),
        ("unk_token", ["<unk>"]),
        ("add_bos_token", 1),
    ],
)
def test_a_setting_of_a_wrong_type_is_named(tmp_path: Path, name: str, value: object) -> None:
    with pytest.raises(TokenizerError, match=rf"tokenizer_config\.json in .* has {name} = .*, but it must be"):
        made(tmp_path, **{name: value})
    assert made(tmp_path, **{name: None}).vocab_size > 0


def test_tokenizers_that_make_other_ids_have_another_identity(tmp_path: Path) -> None:
    raw = make_raw("byte_level")
    save(raw, tmp_path / "one")
    save(raw, tmp_path / "same")
    add_bos(raw)
    save(raw, tmp_path / "bos")
    one, same, bos = (load_tokenizer(tmp_path / name).identity for name in ("one", "same", "bos"))
    assert one == same != bos
