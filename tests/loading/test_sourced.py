"""How outputs of encoder–decoders begin, by their files."""

from pathlib import Path
from typing import Any

from penstock.core.sourced import Sourced
from penstock.loading.checkpoint import Checkpoint
from penstock.loading.sourced import read_sourced
from penstock.text.tokenizer import load_tokenizer
from support.tokenizers_made import make_raw, save


def read(config: dict[str, Any], generation: dict[str, Any] | None = None, tokenizer: Any = None) -> Sourced:
    return read_sourced(Checkpoint(Path("folder"), config, generation or {}, {}), tokenizer, 500, 64)


def test_generation_settings_come_first() -> None:
    config = {"decoder_start_token_id": 3, "forced_bos_token_id": 4, "bos_token_id": 1}
    assert read(config) == Sourced(64, 3, 4)
    assert read(config, {"decoder_start_token_id": 7, "bad_words_ids": [[9]]}) == Sourced(64, 7, 4, never=((9,),))
    assert read({"bos_token_id": 1}).beginning(None) == [1]
    assert read(config).beginning(8) == [3, 8] and read(config).beginning(None) == [3, 4]


def test_languages_with_tokens(tmp_path: Path) -> None:
    raw = make_raw("byte_level")
    raw.add_special_tokens(["en_XX", "__de__", "fra_Latn", "<en_XX>", "en_XXX"])
    tokenizer = load_tokenizer(save(raw, tmp_path))
    found = read({"bos_token_id": 1}, tokenizer=tokenizer).languages
    assert found == {
        code: tokenizer.token_id(token)
        for code, token in (("en_XX", "en_XX"), ("de", "__de__"), ("fra_Latn", "fra_Latn"))
    }


def test_languages_without_tokens(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(save(make_raw("byte_level"), tmp_path, source_lang="eng", target_lang="deu"))
    assert read({"bos_token_id": 1}, tokenizer=tokenizer).pairs == {("en", "de"): ""}
    raw = make_raw("byte_level")
    raw.add_tokens([">>fra<<", ">>zho_Hant<<", ">>any thing<<"])
    several = load_tokenizer(save(raw, tmp_path / "several", source_lang="en", target_lang="mul"))
    assert read({"bos_token_id": 1}, tokenizer=several).pairs == {
        ("en", "fr"): ">>fra<< ",
        ("en", "zt"): ">>zho_Hant<< ",
    }
    tasks = {"summarization": {"prefix": "summarize: "}, "translation_en_to_de": {"prefix": "translate: "}}
    assert read({"bos_token_id": 1, "task_specific_params": tasks}).pairs == {("en", "de"): "translate: "}
