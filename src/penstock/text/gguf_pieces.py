"""Tokenizers of encoders in GGUF files: WordPiece ("bert"), and SentencePiece's unigram model ("t5").

llama.cpp's converter writes pieces that begin a word with a mark before them, and those that go on without any, where
BERT's own files have nothing and ## before these.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, processors

from penstock.core.errors import TokenizerError

_SPACE, _GOES_ON = "\u2581", "##"
_UNKNOWN, _NORMAL, _BYTE = 2, 1, 6
_FIRST, _LAST, _NOT_KNOWN = "[CLS]", "[SEP]", "[UNK]"


def word_piece(
    metadata: Mapping[str, Any], tokens: list[str], kinds: list[int], vocabulary: dict[str, int], path: Path
) -> tokenizers.Tokenizer:
    """BERT's: files that do not say whether texts become small letters do so where no piece has a large one."""
    pieces = [_as_theirs(token, kind) for token, kind in zip(tokens, kinds or [_NORMAL] * len(tokens), strict=True)]
    ids = {piece: index for index, piece in enumerate(pieces)}
    if len(ids) != len(pieces):
        raise TokenizerError(f"{path.name} has a piece of a word twice in its vocabulary; it is damaged.")
    small = metadata.get("tokenizer.ggml.normalizer.lowercase")
    if not isinstance(small, bool):
        small = not any(letter.isupper() for piece in pieces if not _is_special(piece) for letter in piece)
    strips = metadata.get("tokenizer.ggml.normalizer.strip_accents")
    unknown = _named(metadata, tokens, ("unknown",), _NOT_KNOWN)
    raw = tokenizers.Tokenizer(models.WordPiece(ids, unk_token=unknown))
    raw.normalizer = normalizers.BertNormalizer(
        lowercase=small, strip_accents=strips if isinstance(strips, bool) else small
    )
    raw.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    raw.decoder = decoders.WordPiece(prefix=_GOES_ON)
    first, last = _ends(metadata, tokens)
    if first in ids and last in ids:
        raw.post_processor = processors.TemplateProcessing(
            single=f"{first} $A {last}",
            pair=f"{first} $A {last} $B:1 {last}:1",
            special_tokens=[(first, ids[first]), (last, ids[last])],
        )
    return raw


def around_word_pieces(metadata: Mapping[str, Any], tokens: list[str]) -> dict[str, Any]:
    """What tokenizer_config.json would say of BERT's: what is put around a text, and which tokens are special."""
    first, last = _ends(metadata, tokens)
    return {
        "bos_token": first,
        "eos_token": last,
        "add_bos_token": metadata.get("tokenizer.ggml.add_bos_token", True),
        "add_eos_token": metadata.get("tokenizer.ggml.add_sep_token", True),
    }


def unigram(
    metadata: Mapping[str, Any], tokens: list[str], kinds: list[int], vocabulary: dict[str, int], path: Path
) -> tokenizers.Tokenizer:
    """XLM-R's: of all ways to cut a text into pieces, the likeliest."""
    scores = _numbers(metadata.get("tokenizer.ggml.scores"))
    if len(scores) != len(tokens):
        raise TokenizerError(f"{path.name} has {len(tokens)} tokens, but {len(scores)} scores of them.")
    unknown = next((index for index, kind in enumerate(kinds) if kind == _UNKNOWN), None)
    unknown = metadata.get("tokenizer.ggml.unknown_token_id", unknown)
    raw = tokenizers.Tokenizer(
        models.Unigram(list(zip(tokens, scores, strict=True)), unk_id=unknown, byte_fallback=_BYTE in kinds)
    )
    table = bytes(byte % 256 for byte in _numbers(metadata.get("tokenizer.ggml.precompiled_charsmap")))
    squeezes = metadata.get("tokenizer.ggml.remove_extra_whitespaces", True) is True
    spell(raw, table, squeezes=squeezes, begun=metadata.get("tokenizer.ggml.add_space_prefix", True) is True)
    return raw


def spell(raw: tokenizers.Tokenizer, charsmap: bytes, *, squeezes: bool, begun: bool = True) -> None:
    """Have texts become pieces as SentencePiece writes them, with a mark for each space, and one before if `begun`.

    `charsmap` says what characters are replaced by, if it is not empty. Where it `squeezes`, spaces at both ends, and
    all but one between words, are removed.
    """
    steps: list[normalizers.Normalizer] = [normalizers.Precompiled(charsmap)] if charsmap else []
    steps += [normalizers.Strip(), normalizers.Replace(Regex(" {2,}"), " ")] if squeezes else []
    raw.normalizer = normalizers.Sequence(steps)
    scheme = "always" if begun else "never"
    raw.pre_tokenizer = pre_tokenizers.Metaspace(_SPACE, prepend_scheme=scheme)
    raw.decoder = decoders.Metaspace(_SPACE, prepend_scheme=scheme)


def _as_theirs(token: str, kind: int) -> str:
    """A piece as BERT's own files have it."""
    if token.startswith(_SPACE):
        return token.removeprefix(_SPACE)
    return token if kind != _NORMAL or _is_special(token) else _GOES_ON + token


def _is_special(piece: str) -> bool:
    return piece.startswith("[") and piece.endswith("]")


def _ends(metadata: Mapping[str, Any], tokens: list[str]) -> tuple[str, str]:
    """What stands before a text, and what behind it."""
    first = _named(metadata, tokens, ("cls", "bos"), _FIRST)
    return first, _named(metadata, tokens, ("seperator", "eos"), _LAST)


def _named(metadata: Mapping[str, Any], tokens: list[str], names: tuple[str, ...], default: str) -> str:
    """The token that the file has under the first of these names."""
    for name in names:
        index = metadata.get(f"tokenizer.ggml.{name}_token_id")
        if isinstance(index, int) and not isinstance(index, bool) and 0 <= index < len(tokens):
            return tokens[index]
    return default


def _numbers(found: Any) -> Sequence[Any]:
    return () if found is None or isinstance(found, (str, int, float)) or not len(found) else found
