"""Tokenizers of encoder-decoders that come as files of SentencePiece, put together from the tokenizers library's parts.

Marian has a file for sources, one for outputs, and ids for the pieces of both (vocab.json). M2M-100 has ids in such a
file too, and languages behind them. T5 and mT5 have SentencePiece's own ids, and tokens for gaps behind them.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, models, processors

from penstock.core.errors import TokenizerError
from penstock.text.gguf_pieces import spell
from penstock.text.gguf_tokenizer import merges_by_score
from penstock.text.sentence_pieces import CONTROL, UNKNOWN, USER_DEFINED, SentencePieces, read_sentence_pieces
from penstock.text.tokenizer import Tokenizer, read_json

MARIAN, M2M_100, T5 = "source.spm", "sentencepiece.bpe.model", "spiece.model"
_VOCABULARY = "vocab.json"
# Behind the pieces of T5 there are as many gaps, the last one first.
_GAPS = 100
# Tokens that sources are not cut into, such as those of outputs, are worth so little that any other way is better.
_LEAST = -1e6
_ENDS = {"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}


def has_pieces(folder: Path) -> bool:
    """Whether a folder has such files."""
    with_ids = (folder / _VOCABULARY).is_file()
    return (folder / T5).is_file() or (with_ids and any((folder / name).is_file() for name in (MARIAN, M2M_100)))


def tokenizer_of_pieces(folder: Path) -> Tokenizer:
    """The tokenizer of a folder that has such files. Raises TokenizerError where they make no sense together."""
    names = read_json(folder / "special_tokens_map.json")
    config = {**_ENDS, **names, **read_json(folder / "tokenizer_config.json")}
    if config.get("separate_vocabs"):
        raise TokenizerError(
            f"{folder} has separate vocabularies for sources and outputs, which is not implemented; send token ids."
        )
    found = (name for name in (MARIAN, M2M_100, T5) if (folder / name).is_file())
    name = next(found)
    if name == T5 and "Pegasus" in str(config.get("tokenizer_class")):
        raise TokenizerError(f"{folder}: {T5} of a PEGASUS is not implemented; convert it to tokenizer.json.")
    pieces = read_sentence_pieces(folder / name)
    try:
        raw = _made(pieces, _ids(folder, name, pieces, config), name, config)
        return Tokenizer(raw, config, folder)
    except TokenizerError:
        raise
    except Exception as error:  # the library raises plain Exception
        raise TokenizerError(f"The tokenizer in {folder} cannot be put together: {error}.") from error


def _ids(folder: Path, name: str, pieces: SentencePieces, config: Mapping[str, Any]) -> dict[str, int]:
    """Ids of all tokens; they are 0, 1 and so on."""
    if name == T5:
        ids = {text: index for index, text in enumerate(pieces.texts)}
        gaps = (f"<extra_id_{gap}>" for gap in reversed(range(_GAPS)))
        return _further(ids, gaps)
    ids = read_json(folder / _VOCABULARY)
    if sorted(ids.values(), key=lambda value: value if type(value) is int else -1) != list(range(len(ids))):
        raise TokenizerError(f"{folder / _VOCABULARY} must have the ids from 0 on, each once.")
    return ids if name == MARIAN else _further(ids, _languages(config))


def _further(ids: dict[str, int], tokens: Any) -> dict[str, int]:
    """With ids for `tokens` behind the others."""
    for token in tokens:
        ids.setdefault(token, len(ids))
    return ids


def _languages(config: Mapping[str, Any]) -> list[str]:
    named = config.get("additional_special_tokens") or config.get("extra_special_tokens") or []
    texts = [each.get("content") if isinstance(each, dict) else each for each in named]
    return [text for text in texts if isinstance(text, str)]


def _made(pieces: SentencePieces, ids: Mapping[str, int], name: str, config: Mapping[str, Any]) -> tokenizers.Tokenizer:
    ends = {key: text for key in _ENDS if isinstance(text := _text(config.get(key)), str) and text in ids}
    unknown = ends.get("unk_token")
    if unknown is None:
        raise TokenizerError("there is no token for what is unknown")
    known = {text: index for index, text in enumerate(pieces.texts) if text in ids and pieces.kinds[index] != UNKNOWN}
    if pieces.merges:
        ordinary = {text: index for text, index in known.items() if pieces.kinds[index] != CONTROL}
        merges = merges_by_score(ordinary, pieces.scores)
        raw = tokenizers.Tokenizer(models.BPE(dict(ids), merges, unk_token=unknown, fuse_unk=True))
    else:
        ordered = sorted(ids, key=lambda text: ids[text])
        worth = [(text, pieces.scores[known[text]] if text in known else _LEAST) for text in ordered]
        raw = tokenizers.Tokenizer(models.Unigram(worth, ids[unknown], byte_fallback=False))
    spell(raw, pieces.charsmap, squeezes=pieces.squeezes)
    _add_tokens(raw, pieces, ids, ends, name, config)
    end = ends.get("eos_token", "</s>")
    own = _source_language(ids, config) if name == M2M_100 else None
    around = {text: ids[text] for text in (end, own) if text is not None}
    template = f"{own} $A {end}" if own else f"$A {end}"
    raw.post_processor = processors.TemplateProcessing(single=template, special_tokens=list(around.items()))
    return raw


def _text(named: Any) -> Any:
    return named.get("content") if isinstance(named, dict) else named


def _add_tokens(
    raw: tokenizers.Tokenizer,
    pieces: SentencePieces,
    ids: Mapping[str, int],
    ends: Mapping[str, str],
    name: str,
    config: Mapping[str, Any],
) -> None:
    """Tokens that are found in texts as they stand there."""
    special = [*ends.values(), *(_languages(config) if name != MARIAN else ())]
    special += [text for text, kind in zip(pieces.texts, pieces.kinds, strict=True) if kind == CONTROL]
    raw.add_special_tokens([AddedToken(text, normalized=False) for text in dict.fromkeys(special) if text in ids])
    plain = [text for text, kind in zip(pieces.texts, pieces.kinds, strict=True) if kind == USER_DEFINED]
    if name == T5:
        plain += [f"<extra_id_{gap}>" for gap in range(_GAPS)]
    if name == MARIAN:
        # What a source asks for: the language of the output.
        plain += [text for text in ids if text.startswith(">>") and text.endswith("<<")]
    raw.add_tokens([AddedToken(text, normalized=False, rstrip=name == MARIAN) for text in plain if text in ids])


def _source_language(ids: Mapping[str, int], config: Mapping[str, Any]) -> str:
    named = config.get("src_lang") or "en"
    token = f"__{named}__"
    if token not in ids:
        raise TokenizerError(f"src_lang is {named!r}, which the tokenizer has no token for")
    return token
