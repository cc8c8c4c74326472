"""Languages of sources: their tokens, and where the tokenizers of M2M-100, NLLB and mBART put them."""

from pathlib import Path

import pytest
import tokenizers
from tokenizers import models, processors

from penstock.text.languages import language_tokens, source_ids
from penstock.text.tokenizer import Tokenizer

NAMES = {
    "m2m-100": ("__en__", "__de__", {"en": 2, "de": 3}),
    "mbart": ("en_XX", "de_DE", {"en_XX": 2, "de_DE": 3}),
    "nllb": ("eng_Latn", "deu_Latn", {"eng_Latn": 2, "deu_Latn": 3}),
}


def made(names: tuple[str, str], template: str) -> Tokenizer:
    raw = tokenizers.Tokenizer(models.WordLevel({"</s>": 0, "<unk>": 1}, unk_token="<unk>"))
    raw.add_special_tokens(["</s>", *names])
    raw.add_tokens(["a"])
    pieces = [(name, raw.token_to_id(name)) for name in ("</s>", *names)]
    raw.post_processor = processors.TemplateProcessing(single=template, special_tokens=pieces)
    return Tokenizer(raw, {}, Path("tokenizer"))


@pytest.mark.parametrize("family", NAMES)
def test_languages_are_told_by_their_tokens(family: str) -> None:
    english, german, languages = NAMES[family]
    assert language_tokens(made((english, german), "$A")) == languages


@pytest.mark.parametrize(
    "template, plain, german",
    [
        ("en_XX $A </s>", [2, 4, 0], [3, 4, 0]),
        ("$A </s> en_XX", [4, 0, 2], [4, 0, 3]),
        ("$A </s>", [4, 0], [3, 4, 0]),
    ],
)
def test_a_source_has_its_language_where_the_tokenizer_has_one(
    template: str, plain: list[int], german: list[int]
) -> None:
    tokenizer = made(("en_XX", "de_DE"), template)
    languages = language_tokens(tokenizer)
    assert source_ids(tokenizer, [4], languages, None) == plain
    assert source_ids(tokenizer, [4], languages, "de_DE") == german
    with pytest.raises(KeyError):
        source_ids(tokenizer, [4], languages, "xx_XX")
