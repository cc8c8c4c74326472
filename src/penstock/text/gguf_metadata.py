"""What a GGUF file says of a tokenizer. `gguf_tokenizer` reads it back, and so it is tried before it is written."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from penstock.core.errors import TokenizerError
from penstock.core.text_files import decoded
from penstock.text.chat_template import named_templates
from penstock.text.gguf_tokenizer import BYTE, CONTROL, NAMED, UNKNOWN, USER_DEFINED, WORDS, gguf_tokenizer
from penstock.text.tokenizer import Tokenizer

_NORMAL, _UNUSED = 1, 5
# Texts on which tokenizers differ: spaces and ends of lines, digits, shortened words, what is composed of several
# characters, scripts without spaces, and what has no letters.
_TRIED = (
    "The rain's stopped; we'll see, they'RE gone.",
    " two  spaces,\ta tab \n\n\n and lines \r\n at the end  \n",
    "1 12 123 1234 12345.678, 0x1F, 3/4, 10\u00b2",
    "def f(x):\n    return {'a': x[0], \"b\": -x}  # \u00e9t\u00e9\n",
    "Cafe\u0301 na\u00efve \u00c5ngstr\u00f6m \u1e9b\u0323 \ufb01n",
    "東京は雨。 한국어 ภาษา العربية",
    "👩\u200d👩\u200d👧 🏳\ufe0f\u200d🌈 …—“quoted”\u00a0\u200b",
    "aaaaaaaaaaaaaaaaaaaaaaaa!!!!!!!!!! ???...",
    "x",
    " ",
)


def tokenizer_metadata(original: Tokenizer, rows: int) -> dict[str, Any]:
    """The metadata of a tokenizer in a checkpoint's directory, with `rows` tokens, as the model has them.

    Raises TokenizerError where a file that says it would encode some text otherwise.
    """
    raw = json.loads(decoded((original.directory / "tokenizer.json").read_bytes()))
    if raw["model"].get("type", "BPE") != "BPE":
        raise TokenizerError(f"A GGUF file has no place for a tokenizer of type {raw['model']['type']}, only for BPE.")
    # Tokens that the model has no row for are never made: Gemma's for images, in models of text alone.
    raw["added_tokens"] = [token for token in raw.get("added_tokens", ()) if token["id"] < rows]
    common = _vocabulary(raw, rows) | _named(original) | _templates(original)
    texts = list(_TRIED)
    for token in raw["added_tokens"]:
        texts += [f"a {token['content']} b", f"a{token['content']}b"]
    expected, expected_words = [original.encode(text) for text in texts], [original.words(text) for text in texts]
    found: list[tuple[int, dict[str, Any]]] = []
    for way in _ways(raw, common["tokenizer.ggml.tokens"]):
        metadata = common | way
        made = gguf_tokenizer(metadata, original.directory)
        assert made is not None, "it has a kind"
        if [made.encode(text) for text in texts] != expected:
            continue
        others = sum(made.words(text) != words for text, words in zip(texts, expected_words, strict=True))
        found.append((others, metadata))
        if not others:
            break
    if found:
        # A vocabulary can hide in what words differ. No token may have two digits, so that words of several are none.
        return min(found, key=lambda each: each[0])[1]
    raise TokenizerError(
        f"The tokenizer in {original.directory} splits text in a way for which GGUF files have no name that is known "
        f"here; these are: {', '.join(WORDS)}."
    )


def _vocabulary(raw: Mapping[str, Any], rows: int) -> dict[str, Any]:
    """Tokens and their kinds, one for each of the model's rows; places that nothing stands at are filled."""
    added = {token["content"]: token for token in raw["added_tokens"]}
    ids = dict(raw["model"]["vocab"]) | {content: token["id"] for content, token in added.items()}
    tokens = [f"[PAD{place}]" for place in range(rows)]
    kinds = [_UNUSED] * len(tokens)
    for token, place in ids.items():
        tokens[place] = token
        kinds[place] = _kind(token, added, raw["model"])
    return {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": kinds}


def _kind(token: str, added: Mapping[str, Any], model: Mapping[str, Any]) -> int:
    if token == model.get("unk_token"):
        return UNKNOWN
    if token in added:
        return CONTROL if added[token]["special"] else USER_DEFINED
    is_byte = bool(model.get("byte_fallback")) and len(token) == 6 and token.startswith("<0x")
    return BYTE if is_byte else _NORMAL


def _ways(raw: Mapping[str, Any], tokens: Sequence[str]) -> Iterator[dict[str, Any]]:
    """How text may become `tokens`, as files say it."""
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in raw["model"]["merges"]]
    if "ByteLevel" in json.dumps(raw.get("pre_tokenizer")):
        for words in WORDS:
            yield {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": words, "tokenizer.ggml.merges": merges}
        return
    # As SentencePiece numbers what it has learnt: what comes first is merged first.
    ranks = {merge.replace(" ", ""): rank for rank, merge in reversed(list(enumerate(merges)))}
    scores = [-float(ranks.get(token, len(merges))) for token in tokens]
    for prefixed in (True, False):
        yield {
            "tokenizer.ggml.model": "llama",
            "tokenizer.ggml.scores": scores,
            "tokenizer.ggml.add_space_prefix": prefixed,
        }


def _named(original: Tokenizer) -> dict[str, Any]:
    """Tokens with a part to play, and which of them stand around every text."""
    found: dict[str, Any] = {}
    for name, short in NAMED.items():
        token = original.special_tokens.get(f"{short}_token")
        place = None if token is None else original.token_id(token)
        if place is not None:
            found[f"tokenizer.ggml.{name}_token_id"] = place
    inner = original.encode("a", add_special_tokens=False)
    full = original.add_special_ids(inner)
    found["tokenizer.ggml.add_bos_token"] = full[: len(inner)] != inner
    found["tokenizer.ggml.add_eos_token"] = full[-len(inner) :] != inner
    return found


def _templates(original: Tokenizer) -> dict[str, Any]:
    named = named_templates(original)
    found: dict[str, Any] = {"tokenizer.chat_template": named["default"]} if "default" in named else {}
    others = sorted(named.keys() - {"default"})
    if others:
        found["tokenizer.chat_templates"] = others
    return found | {f"tokenizer.chat_template.{name}": named[name] for name in others}
