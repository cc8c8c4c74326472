"""Tokens that stand for languages: which a tokenizer has, and where a source says what it is written in.

M2M-100 writes "__de__", mBART "de_DE", NLLB "deu_Latn". A source has its language's token before it (M2M-100, NLLB,
mBART-50) or behind it (the first mBART), and an output begins with that of its own.
"""

import re
from collections.abc import Mapping

from penstock.text.tokenizer import Tokenizer

_CODE = re.compile(r"__(?P<m2m>[a-z]{2,3})__|(?P<mbart>[a-z]{2}_[A-Z]{2})|(?P<nllb>[a-z]{3}_[A-Z][a-z]{3})")


def language_tokens(tokenizer: Tokenizer) -> dict[str, int]:
    """Ids of the tokens of languages by the codes that the model's makers use: "de", "de_DE" or "deu_Latn"."""
    found = {}
    for index in range(tokenizer.vocab_size):
        if not tokenizer.table.is_special(index):
            continue
        match = _CODE.fullmatch(tokenizer.token(index) or "")
        if match is not None:
            found[next(code for code in match.groups() if code is not None)] = index
    return found


def source_ids(tokenizer: Tokenizer, ids: list[int], languages: Mapping[str, int], language: str | None) -> list[int]:
    """A source of token `ids` with what the tokenizer puts around a text, and with its `language` there.

    Without a language, it is the one that the tokenizer's file names. Where that names none, the language's token
    comes before the text. Raises KeyError where there is no such language.
    """
    prefix, suffix = tokenizer.affixes
    if language is not None:
        known, own = set(languages.values()), languages[language]
        if known.isdisjoint((*prefix, *suffix)):
            prefix = [own, *prefix]
        else:
            prefix, suffix = ([own if token in known else token for token in part] for part in (prefix, suffix))
    return [*prefix, *ids, *suffix]
