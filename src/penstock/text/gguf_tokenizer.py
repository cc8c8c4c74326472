"""The tokenizer that a GGUF file carries in its metadata, put together from the same library's parts as any other.

`tokenizer.ggml.model` says which kind: "gpt2" merges bytes by a list of merges, where a character stands for each byte,
within words that a regular expression finds (`tokenizer.ggml.pre` names it); "llama" is SentencePiece's, where scores
order the merges; "gemma4" merges characters by a list, over the whole text, and has bytes for those that it lacks.
"""

import reprlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers

from penstock.core.errors import TokenizerError
from penstock.text.gguf_pieces import around_word_pieces, unigram, word_piece
from penstock.text.tokenizer import Tokenizer

# Kinds of tokens.
UNKNOWN, CONTROL, USER_DEFINED, BYTE = 2, 3, 4, 6
_SPACE = "\u2581"

_LETTERS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_SHORTENED = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
# Words that end where large letters follow small ones.
_BEFORE, _LARGE, _SMALL = r"[^\r\n\p{L}\p{N}]?", r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_SLASHED = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_ONES, _THREES = r"\p{N}", r"\p{N}{1,3}"
# DeepSeek's: letters that have a case, as they were listed in an older Unicode, without the small ones of Armenian and
# Georgian; and the languages of east Asia, with much that lies before them.
_CASED_LETTERS = (
    "A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-\u0373"
    "\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f"
    "\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77"
    "\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d"
    "\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb"
    "\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128"
    "\u212a-\u212d\u212f-\u2134\u2139\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4"
    "\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf"
    "\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a\U00010400-\U0001044f\U000104b0-\U000104d3"
    "\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2\U000118a0-\U000118df\U0001e900-\U0001e943"
)
_EASTERN = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"


def _cased(end: str) -> str:
    return f"{_BEFORE}{_LARGE}*{_SMALL}+{end}|{_BEFORE}{_LARGE}+{_SMALL}*{end}"


# What words are, by the name that files give it; each pattern splits what those before it leave whole.
_PATTERNS = {
    "llama-bpe": (f"{_SHORTENED}|{_LETTERS}|{_THREES}|{_REST}",),
    "smaug-bpe": (f"{_SHORTENED}|{_LETTERS}|{_THREES}|{_REST}",),
    "qwen2": (f"{_SHORTENED}|{_LETTERS}|{_ONES}|{_REST}",),
    "tekken": (f"{_cased('')}|{_ONES}|{_SLASHED}",),
    "gpt-4o": (f"{_cased(f'{_SHORTENED}?')}|{_THREES}|{_SLASHED}",),
    "deepseek-llm": (
        r"[\r\n]",
        rf"\s?[{_CASED_LETTERS}]+",
        "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+",
        r"\s+$",
        _EASTERN,
        r"\p{N}+",
    ),
    "deepseek-coder": (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _EASTERN, _ONES),
    "deepseek-v3": (
        _THREES,
        "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
        r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+|"
        r" ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    ),
}
# As GPT-2 has it, of some with each digit by itself.
_AS_GPT2 = ("gpt-2", "modern-bert")
_SINGLE_DIGITS = ("starcoder", "refact", "command-r", "smollm")
# With these, a word that is a token is one, whatever merges say, and a text begins with the token for its beginning.
_WHOLE_WORDS = ("llama-bpe", "tekken")
_COMPOSED = ("qwen2", "modern-bert")
# Other names for the same, and what files that name nothing are by their architecture.
_ALIASES = {
    **dict.fromkeys(("llama3", "llama-v3"), "llama-bpe"),
    **dict.fromkeys(("dbrx", "chatglm-bpe", "glm4"), "smaug-bpe"),
    "deepseek-r1-qwen": "qwen2",
    "roberta-bpe": "gpt-2",
}
_BY_ARCHITECTURE = {"qwen2": "qwen2", "qwen3": "qwen2"}
# All names for how words are found that mean something different.
WORDS = (*_AS_GPT2, *_PATTERNS, *_SINGLE_DIGITS)
# Ways to put a token together grow with the square of its length.
_LONGEST_TOKEN = 1024
# As files spell them, as tokenizer_config.json has them, and what they are in SentencePiece's where nothing says so.
NAMED = {"bos": "bos", "eos": "eos", "unknown": "unk", "seperator": "sep", "padding": "pad"}
_OF_SENTENCE_PIECE = {"bos": 1, "eos": 2, "unknown": 0}


def gguf_tokenizer(metadata: Mapping[str, Any], path: Path) -> Tokenizer | None:
    """The tokenizer; None where the file has none. Raises TokenizerError where it cannot be used."""
    kind = metadata.get("tokenizer.ggml.model")
    if kind in (None, "none", "no_vocab"):
        return None
    makers = {
        "gpt2": _byte_level,
        "llama": _sentence_piece,
        "gemma4": _characters,
        "bert": word_piece,
        "t5": unigram,
    }
    if not isinstance(kind, str) or kind not in makers:
        raise TokenizerError(
            f"{path.name} has a tokenizer of kind {reprlib.repr(kind)}, which is not implemented; these are: "
            f"{', '.join(makers)}."
        )
    tokens = _texts(metadata, "tokens", path)
    kinds = _numbers(metadata, "token_type", path) if "tokenizer.ggml.token_type" in metadata else []
    if kinds and len(kinds) != len(tokens):
        raise TokenizerError(f"{path.name} has {len(tokens)} tokens, but {len(kinds)} kinds of them; it is damaged.")
    # Places that nothing was said of.
    tokens = [token or f"[EMPTY_{index}]" for index, token in enumerate(tokens)]
    if max(map(len, tokens), default=0) > _LONGEST_TOKEN:
        raise TokenizerError(f"{path.name} has a token of more than {_LONGEST_TOKEN} characters; it is damaged.")
    vocabulary = {token: index for index, token in enumerate(tokens)}
    if len(vocabulary) != len(tokens):
        raise TokenizerError(f"{path.name} has a token twice in its vocabulary; it is damaged.")
    try:
        raw = makers[kind](metadata, tokens, kinds, vocabulary, path)
        raw.add_tokens(
            [
                AddedToken(token, special=kind != USER_DEFINED, normalized=False)
                for token, kind in zip(tokens, kinds, strict=False)
                if kind in (UNKNOWN, CONTROL, USER_DEFINED)
            ]
        )
        return Tokenizer(raw, _config(metadata, tokens, path), path)
    except TokenizerError:
        raise
    except Exception as error:  # the library raises plain Exception
        raise TokenizerError(f"The tokenizer in {path.name} cannot be put together: {error}.") from error


def _texts(metadata: Mapping[str, Any], name: str, path: Path) -> list[str]:
    found = _listed(metadata, name, path)
    # Those of an array are all of one kind.
    if len(found) and not isinstance(found[0], str):
        raise TokenizerError(f"{path.name} has numbers as tokenizer.ggml.{name}, which must be texts; it is damaged.")
    return list(found)


def _numbers(metadata: Mapping[str, Any], name: str, path: Path) -> list[Any]:
    found = _listed(metadata, name, path)
    if len(found) and isinstance(found[0], str):
        raise TokenizerError(f"{path.name} has texts as tokenizer.ggml.{name}, which must be numbers; it is damaged.")
    return list(found)


def _listed(metadata: Mapping[str, Any], name: str, path: Path) -> Sequence[Any]:
    found = metadata.get(f"tokenizer.ggml.{name}")
    if found is None or isinstance(found, (str, int, float)):
        raise TokenizerError(f"{path.name} has no list tokenizer.ggml.{name}, which its tokenizer needs.")
    return cast(Sequence[Any], found)


def _byte_level(
    metadata: Mapping[str, Any], tokens: list[str], kinds: list[int], vocabulary: dict[str, int], path: Path
) -> tokenizers.Tokenizer:
    named = _words_named(metadata)
    words = _words(named, path)
    merges = _listed_merges(metadata, vocabulary, path)
    raw = tokenizers.Tokenizer(models.BPE(vocabulary, merges, ignore_merges=named in _WHOLE_WORDS))
    raw.pre_tokenizer = words
    if named in _COMPOSED:
        raw.normalizer = normalizers.NFC()
    raw.decoder = decoders.ByteLevel()
    return raw


def _listed_merges(metadata: Mapping[str, Any], vocabulary: dict[str, int], path: Path) -> list[tuple[str, str]]:
    merges = []
    for merge in _texts(metadata, "merges", path):
        left, _, right = merge.partition(" ")
        if left not in vocabulary or right not in vocabulary or left + right not in vocabulary:
            raise TokenizerError(
                f"{path.name} merges {reprlib.repr(merge)}, which are no tokens or become none; it is damaged."
            )
        merges.append((left, right))
    return merges


def _characters(
    metadata: Mapping[str, Any], tokens: list[str], kinds: list[int], vocabulary: dict[str, int], path: Path
) -> tokenizers.Tokenizer:
    unknown = next((token for token, kind in zip(tokens, kinds, strict=False) if kind == UNKNOWN), None)
    merges = _listed_merges(metadata, vocabulary, path)
    raw = tokenizers.Tokenizer(
        models.BPE(vocabulary, merges, unk_token=unknown, fuse_unk=True, byte_fallback=BYTE in kinds)
    )
    return _with_spaces(raw, prefixed=metadata.get("tokenizer.ggml.add_space_prefix", False) is True)


def _with_spaces(raw: tokenizers.Tokenizer, *, prefixed: bool) -> tokenizers.Tokenizer:
    """With a mark for each space; where texts are `prefixed`, one before the first word."""
    steps = [normalizers.Prepend(_SPACE)] if prefixed else []
    raw.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", _SPACE)])
    back = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    raw.decoder = decoders.Sequence([*back, decoders.Strip(" ", 1, 0)] if prefixed else back)
    return raw


def _words_named(metadata: Mapping[str, Any]) -> Any:
    """How words are found; None where the file does not say."""
    named = metadata.get("tokenizer.ggml.pre")
    if named is None or named == "default":
        architecture = metadata.get("general.architecture")
        return _BY_ARCHITECTURE.get(architecture) if isinstance(architecture, str) else None
    return _ALIASES.get(named, named) if isinstance(named, str) else named


def _words(named: Any, path: Path) -> pre_tokenizers.PreTokenizer:
    if isinstance(named, str) and named in _PATTERNS:
        splits = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in _PATTERNS[named]]
        return pre_tokenizers.Sequence([*splits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    words = pre_tokenizers.ByteLevel(add_prefix_space=False)
    if named in _AS_GPT2:
        return words
    if named in _SINGLE_DIGITS:
        return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), words])
    known = ", ".join(WORDS)
    how = "in a way that it does not name" if named is None else f"as {reprlib.repr(named)} does"
    raise TokenizerError(
        f"{path.name} splits text into words {how}, which is not implemented; these are: {known}. --tokenizer takes a "
        "directory with the model's tokenizer.json."
    )


def _sentence_piece(
    metadata: Mapping[str, Any], tokens: list[str], kinds: list[int], vocabulary: dict[str, int], path: Path
) -> tokenizers.Tokenizer:
    scores = _numbers(metadata, "scores", path)
    for name, found in (("scores", scores), ("kinds", kinds)):
        if len(found) != len(tokens):
            raise TokenizerError(f"{path.name} has {len(tokens)} tokens, but {len(found)} {name} of them.")
    ordinary = {token: i for i, token in enumerate(tokens) if kinds[i] not in (UNKNOWN, CONTROL, BYTE)}
    unknown = next((token for token, kind in zip(tokens, kinds, strict=True) if kind == UNKNOWN), None)
    bytes_too = BYTE in kinds
    raw = tokenizers.Tokenizer(
        models.BPE(
            vocabulary, merges_by_score(ordinary, scores), unk_token=unknown, fuse_unk=True, byte_fallback=bytes_too
        )
    )
    return _with_spaces(raw, prefixed=metadata.get("tokenizer.ggml.add_space_prefix", True) is True)


def merges_by_score(ids: Mapping[str, int], scores: Sequence[float]) -> list[tuple[str, str]]:
    """Every way to put a token together of two others, the tokens with the best scores first."""
    ranked = sorted(ids, key=lambda token: -scores[ids[token]])
    return [pair for token in ranked for pair in sorted(_halves(token, ids), key=lambda p: (ids[p[0]], ids[p[1]]))]


def _halves(token: str, ids: Mapping[str, int]) -> Iterator[tuple[str, str]]:
    for place in range(1, len(token)):
        left, right = token[:place], token[place:]
        if left in ids and right in ids:
            yield left, right


def _config(metadata: Mapping[str, Any], tokens: list[str], path: Path) -> dict[str, Any]:
    """What tokenizer_config.json would say."""
    if metadata["tokenizer.ggml.model"] == "bert":
        return around_word_pieces(metadata, tokens)
    config: dict[str, Any] = {}
    pieces = metadata["tokenizer.ggml.model"] == "llama"
    for name, short in NAMED.items():
        index = metadata.get(f"tokenizer.ggml.{name}_token_id", _OF_SENTENCE_PIECE.get(name) if pieces else None)
        if not isinstance(index, int) or isinstance(index, bool):
            continue
        if 0 <= index < len(tokens):
            config[f"{short}_token"] = tokens[index]
        elif name in ("bos", "eos"):
            raise TokenizerError(f"{path.name} names token {index} as {name}, of {len(tokens)}; it is damaged.")
    config["add_bos_token"] = metadata.get(
        "tokenizer.ggml.add_bos_token", pieces or _words_named(metadata) in _WHOLE_WORDS
    )
    config["add_eos_token"] = metadata.get("tokenizer.ggml.add_eos_token", False)
    templates = _templates(metadata)
    if templates:
        config["chat_template"] = templates
    return config


def _templates(metadata: Mapping[str, Any]) -> list[dict[str, str]]:
    """Chat templates by name, as tokenizer_config.json lists them."""
    names = metadata.get("tokenizer.chat_templates", ())
    keys = {"default": "tokenizer.chat_template"}
    if not isinstance(names, (str, int, float)):
        keys |= {name: f"tokenizer.chat_template.{name}" for name in names if isinstance(name, str)}
    found = {name: metadata.get(key) for name, key in keys.items()}
    return [{"name": name, "template": template} for name, template in found.items() if isinstance(template, str)]
