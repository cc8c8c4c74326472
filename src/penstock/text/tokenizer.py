"""A model's tokenizer: text to ids, special tokens, and the table that leads back to bytes."""

import hashlib
import json
import os.path
import re
import reprlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tokenizers

from penstock.core.checks import check_characters
from penstock.core.errors import ContextLengthExceeded, Lengths, TokenizerError
from penstock.core.text_files import HEAD, decoded, something_else, without_mark
from penstock.text.pairs import Cut, Pair, encode_pairs
from penstock.text.table import TokenTable, build_table

# Noncharacters of Unicode: text has no use for them, so one that a request does not contain can mark a position in it.
_MARKERS = tuple(map(chr, range(0xFDD0, 0xFDF0)))

Place = tuple[int, int]
"""Where a token stands in a text: its first character, and that behind its last."""

# Composing characters makes at most one byte of three (U+0390 has two in place of six); more, to be safe.
_NFC_SHRINK = 4

_NAMED_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


class Tokenizer:
    """A loaded tokenizer. Safe to use from several threads.

    Attributes:
        table: id → bytes.
        special_tokens: named special tokens ("bos_token", ...) and their text, as chat templates see them.
        config: `tokenizer_config.json`.
        directory: where it was loaded from.
    """

    def __init__(self, raw: tokenizers.Tokenizer, config: Mapping[str, Any], directory: Path) -> None:
        # A tokenizer file may ask for truncation and padding, which training used; a prompt is never altered here.
        raw.no_truncation()
        raw.no_padding()
        self._raw = raw
        self.config = config
        self.directory = directory
        self.special_tokens = _named_tokens(config, directory)
        self.table: TokenTable = build_table(raw)
        self._prefix, self._suffix = self._added_ids()
        self._special_start = _special_start_pattern(raw)
        self._most_bytes = _most_bytes_per_token(raw, self.table)
        self._anchor_ids = raw.encode("\n", add_special_tokens=False).ids

    @property
    def identity(self) -> bytes:
        """Tokenizers with the same make the same ids of texts."""
        whole = (self._raw.to_str(), self._prefix, self._suffix, sorted(self.special_tokens.items()))
        return hashlib.sha256(repr(whole).encode("utf-8", "surrogatepass")).digest()

    @property
    def vocab_size(self) -> int:
        """The highest id plus one, added tokens included."""
        return len(self.table)

    @property
    def bos_token(self) -> str | None:
        """Text of the token that begins a sequence."""
        return self.special_tokens.get("bos_token")

    @property
    def eos_token(self) -> str | None:
        """Text of the token that ends a sequence."""
        return self.special_tokens.get("eos_token")

    @property
    def bos_token_id(self) -> int | None:
        """Id of the token that begins a sequence."""
        return None if self.bos_token is None else self.token_id(self.bos_token)

    @property
    def eos_token_id(self) -> int | None:
        """Id of the token that ends a sequence."""
        return None if self.eos_token is None else self.token_id(self.eos_token)

    def token(self, index: int) -> str | None:
        """A token as it stands in the vocabulary; None for an id that has none."""
        found: str | None = self._raw.id_to_token(index)
        return found

    def token_id(self, token: str) -> int | None:
        """The id of a token's text as it stands in the vocabulary."""
        found: int | None = self._raw.token_to_id(token)
        return found

    def words(self, text: str) -> list[str]:
        """The pieces of `text`, as it is normalized, that no token reaches beyond, special ones aside."""
        if self._raw.normalizer is not None:
            text = self._raw.normalizer.normalize_str(text)
        if self._raw.pre_tokenizer is None:
            return [text]
        return [text[first:end] for _, (first, end) in self._raw.pre_tokenizer.pre_tokenize_str(text)]

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids of `text`. Special tokens written in the text count as such.

        `add_special_tokens` adds what the tokenizer puts around a text (often a BOS token in front), except for what
        the text has there already. Raises InvalidParameter where the text has half of a surrogate pair.
        """
        check_characters("prompt", text)
        (ids,) = self._ids([text])
        return self.add_special_ids(ids) if add_special_tokens else ids

    def encode_all(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids of each text as `encode` has them, which raises the same; the texts are shared out among cores."""
        for text in texts:
            check_characters("prompt", text)
        return [self.add_special_ids(ids) for ids in self._ids(texts)]

    def encode_placed(self, text: str) -> tuple[list[int], list[Place | None]]:
        """Token ids of `text` as `encode` has them, and where each stands in it; None for what is put around it.

        Raises InvalidParameter where the text has half of a surrogate pair.
        """
        check_characters("prompt", text)
        found = self._raw.encode(text, add_special_tokens=False)
        ids, places = self.add_special_ids(found.ids), list[Place | None](found.offsets)
        before, behind = self._added_around(found.ids)
        return ids, [*[None] * before, *places, *[None] * behind]

    def encode_pairs(
        self, first: str, seconds: Sequence[str], cut: Cut | None = None, *, typed: bool = True
    ) -> list[Pair]:
        """`first` with each of `seconds` as one sequence, by the tokenizer's own template; see `encode_pairs`.

        Raises InvalidParameter where a text has half of a surrogate pair.
        """
        for text in (first, *seconds):
            check_characters("prompt", text)
        # Whatever the template says of types: where this names inputs without them, models are not told.
        named = self.config.get("model_input_names")
        typed = typed and (not isinstance(named, list) or "token_type_ids" in named)
        return encode_pairs(self._raw, first, seconds, cut, typed=typed)

    def check_length(self, text: str, most_tokens: int, param: str) -> None:
        """Raise ContextLengthExceeded where `text` cannot but have more tokens, whichever they are.

        Spares the tokenizing of a text that is far too long. Does nothing for tokenizers that may shorten texts.
        """
        if self._most_bytes is None:
            return
        size = len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
        fewest = -(-size // self._most_bytes)
        if fewest > most_tokens:
            raise ContextLengthExceeded(
                f"The prompt is longer than the model's context length: its {size} bytes of text are at least "
                f"{fewest} tokens, and at most {most_tokens} fit; shorten it.",
                param=param,
                lengths=Lengths(fewest, 0, most_tokens),
            )

    def add_special_ids(self, ids: list[int]) -> list[int]:
        """Put around `ids` what the tokenizer puts around a text, except for what is there already."""
        before, behind = self._added_around(ids)
        return [*self._prefix[:before], *ids, *self._suffix[:behind]]

    def _added_around(self, ids: list[int]) -> tuple[int, int]:
        """How many tokens are put before these, and behind them."""
        begun = ids[: len(self._prefix)] == self._prefix
        ended = bool(self._suffix) and ids[-len(self._suffix) :] == self._suffix
        return 0 if begun else len(self._prefix), 0 if ended else len(self._suffix)

    @property
    def affixes(self) -> tuple[list[int], list[int]]:
        """What the tokenizer puts before a text, and what behind it."""
        return list(self._prefix), list(self._suffix)

    @property
    def added(self) -> tuple[int, int]:
        """How many tokens `add_special_ids` puts before a text, and how many behind it."""
        return len(self._prefix), len(self._suffix)

    def around(self, before: str, *, added: bool = True) -> tuple[int, int]:
        """Tokens before a text and behind it, those of a text `before` it counted as sentence-transformers does."""
        first, behind = self.added if added else (0, 0)
        return (len(self.encode(before, added)) - behind if before else first), behind

    def has_special(self, text: str) -> bool:
        """Whether the text of a special token occurs in `text`."""
        return self._special_start.search(text) is not None

    def mark_special(self, text: str, marker: str) -> str:
        """Break every special token in `text` by a marker after its first character, for `encode_marked`."""
        return self._special_start.sub(lambda match: match[0] + marker, text)

    def encode_marked(self, text: str, marker: str) -> list[int]:
        """Token ids of a text with broken special tokens: those become ordinary text, others count as such.

        Raises InvalidParameter where the text has half of a surrogate pair.
        """
        check_characters("prompt", text)
        first, *others = text.split(marker)
        ids = self.encode(first, add_special_tokens=False)
        for piece in others:
            ids += self.encode_continuation(piece)
        return ids

    def decode(self, tokens: list[int], skip_special: bool = True) -> str:
        """The text of a whole output."""
        return self.table.decode(tokens, skip_special)

    def check_against(self, model_vocab_size: int) -> list[str]:
        """Notes on how the tokenizer fits a model; raises TokenizerError where it does not.

        A special token beyond the model's vocabulary is tolerated, since published models have them (Gemma 3's image
        token in its text-only sizes): a prompt that contains it is refused when it comes.
        """
        vocab = self._raw.get_vocab(with_added_tokens=True)
        beyond = {token: index for token, index in vocab.items() if index >= model_vocab_size}
        ordinary = {token: index for token, index in beyond.items() if not self.table.special[index]}
        if ordinary:
            token, index = max(ordinary.items(), key=lambda item: item[1])
            raise TokenizerError(
                f"The tokenizer in {self.directory} can produce ids up to {index} ({token!r}), but the model's "
                f"vocabulary has only {model_vocab_size} tokens; use the tokenizer that belongs to the model."
            )
        notes = []
        if beyond:
            names = ", ".join(sorted(beyond)[:3])
            notes.append(
                f"{len(beyond)} special token(s) of the tokenizer ({names}) lie beyond the model's vocabulary of "
                f"{model_vocab_size}; prompts that contain one are refused."
            )
        missing = model_vocab_size - len({index for index in vocab.values() if index < model_vocab_size})
        if missing:
            notes.append(f"{missing} of the model's {model_vocab_size} token ids have no token and yield no text.")
        return notes

    def _ids(self, texts: Sequence[str]) -> list[list[int]]:
        # Unlike `encode`, it lets other threads run meanwhile: 100,000 tokens take a fifth of a second.
        return [each.ids for each in self._raw.encode_batch_fast(list(texts), add_special_tokens=False)]

    def encode_continuation(self, piece: str) -> list[int]:
        """Token ids of a text that follows another, without special tokens around it.

        Raises InvalidParameter where it has half of a surrogate pair.
        """
        check_characters("prompt", piece)
        # Some tokenizers put a space before a text. Behind a line break they don't, and its ids can be taken off again.
        (ids,) = self._ids(["\n" + piece])
        count = len(self._anchor_ids)
        return ids[count:] if ids[:count] == self._anchor_ids else self.encode(piece, add_special_tokens=False)

    def _added_ids(self) -> tuple[list[int], list[int]]:
        """Ids that the tokenizer puts before and after a text."""
        bare = self._raw.encode("a", add_special_tokens=False).ids
        full = self._raw.encode("a", add_special_tokens=True).ids
        starts = [i for i in range(len(full) - len(bare) + 1) if full[i : i + len(bare)] == bare]
        if not starts:
            raise TokenizerError(
                f"The tokenizer in {self.directory} changes a text's tokens when it adds special tokens, which is "
                "not supported; use a tokenizer whose post-processor only adds tokens before and after the text."
            )
        prefix, suffix = full[: starts[0]], full[starts[0] + len(bare) :]
        for name, ids in (("bos", prefix), ("eos", suffix)):
            self._apply_setting(name, ids)
        return prefix, suffix

    def _apply_setting(self, name: str, ids: list[int]) -> None:
        """Let `add_bos_token` and `add_eos_token`, where the configuration sets them, add or remove that token."""
        wanted = self.config.get(f"add_{name}_token")
        text = self.special_tokens.get(f"{name}_token")
        token = None if text is None else self.token_id(text)
        if wanted is not None and not isinstance(wanted, bool):
            raise _wrong_setting(self.directory, f"add_{name}_token", wanted, "true or false")
        if token is None or wanted is None:
            return
        if wanted and token not in ids:
            ids.insert(0 if name == "bos" else len(ids), token)
        elif not wanted and token in ids:
            ids.remove(token)


def load_tokenizer(directory: str | Path) -> Tokenizer:
    """Load `tokenizer.json` with its companions `tokenizer_config.json` and `special_tokens_map.json`.

    Raises TokenizerError where the file is missing or cannot be used.
    """
    folder = Path(directory)
    path = folder / "tokenizer.json"
    if not path.is_file():
        others = [name for name in ("tokenizer.model", "vocab.json", "tekken.json") if (folder / name).is_file()]
        found = f" ({', '.join(others)} cannot be read; convert it with transformers)" if others else ""
        raise TokenizerError(
            f"No tokenizer.json in {folder}{found}; put the model's there, or send prompts as token ids."
        )
    try:
        content = path.read_bytes()
        raw = tokenizers.Tokenizer.from_buffer(without_mark(content))
    except OSError as error:
        raise TokenizerError(f"{path} cannot be read ({error.strerror}).") from error
    except Exception as error:  # the library raises plain Exception
        other = something_else(content[:HEAD])
        raise TokenizerError(f"{path} {other or f'cannot be read as a tokenizer: {error}'}.") from error
    names = read_json(folder / "special_tokens_map.json")
    config = {**names, **read_json(folder / "tokenizer_config.json")}
    return Tokenizer(raw, config, folder)


def find_tokenizer(directory: Path, model_vocab_size: int) -> Tokenizer | None:
    """The tokenizer in a model's directory, checked against the model; None where there is none.

    Raises TokenizerError where it cannot be used.
    """
    if not (directory / "tokenizer.json").exists():
        return None
    tokenizer = load_tokenizer(directory)
    tokenizer.check_against(model_vocab_size)
    return tokenizer


def unused_marker(texts: list[str]) -> str | None:
    """A character that occurs in none of `texts`; None where they use up all candidates."""
    return next((marker for marker in _MARKERS if not any(marker in text for text in texts)), None)


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file, empty where there is no such file; raises TokenizerError where it is malformed."""
    if not path.is_file():
        return {}
    try:
        raw = path.read_bytes()
        content = json.loads(decoded(raw))
        # JSON can spell half of a surrogate pair, which is no text.
        json.dumps(content, ensure_ascii=False).encode()
    except OSError as error:
        raise TokenizerError(f"{path} cannot be read ({error.strerror}).") from error
    except (ValueError, RecursionError) as error:
        raise TokenizerError(f"{path} {something_else(raw[:HEAD]) or f'is not valid JSON: {error}'}.") from error
    if not isinstance(content, dict):
        raise TokenizerError(f"{path} must hold a JSON object.")
    return content


def _named_tokens(config: Mapping[str, Any], directory: Path) -> dict[str, str]:
    named = {}
    for name in _NAMED_TOKENS:
        value = config.get(name)
        # Older files describe a token by an object.
        text = value.get("content") if isinstance(value, dict) else value
        if isinstance(text, str):
            named[name] = text
        elif value is not None:
            raise _wrong_setting(directory, name, value, "a text, or an object whose content is one")
    return named


def _wrong_setting(directory: Path, name: str, value: Any, expected: str) -> TokenizerError:
    shown = reprlib.repr(value)
    return TokenizerError(f"tokenizer_config.json in {directory} has {name} = {shown}, but it must be {expected}.")


def _special_start_pattern(raw: tokenizers.Tokenizer) -> re.Pattern[str]:
    """Matches the first character of every special token in a text; overlapping ones count each.

    The tokens become a tree of shared beginnings, so that a position costs no more than the characters that it shares
    with one of them, however many there are.
    """
    texts = [token.content for token in raw.get_added_tokens_decoder().values() if token.special]
    by_first: dict[str, list[str]] = {}
    for text in texts:
        if len(text) > 1:
            by_first.setdefault(text[0], []).append(text[1:])
    # Beginning with a plain character, rather than by looking ahead, lets the search skip all other text.
    choices = [f"{re.escape(first)}(?={_any_of(rests)})" for first, rests in sorted(by_first.items())]
    return re.compile("|".join(choices) or r"(?!)")


def _any_of(texts: list[str]) -> str:
    """A pattern for any beginning that is one of `texts`."""
    if "" in texts:
        return ""
    by_first: dict[str, list[str]] = {}
    for text in texts:
        by_first.setdefault(text[0], []).append(text)
    choices = []
    for _, group in sorted(by_first.items()):
        shared = os.path.commonprefix(group)
        choices.append(re.escape(shared) + _any_of([text[len(shared) :] for text in group]))
    return choices[0] if len(choices) == 1 else f"(?:{'|'.join(choices)})"


def _most_bytes_per_token(raw: tokenizers.Tokenizer, table: TokenTable) -> int | None:
    """A bound on the bytes of text that one token stands for; None where the tokenizer may drop or replace text."""
    model = json.loads(raw.model.__getstate__())
    pieces = set(table.pieces)
    # With a token for each byte, nothing becomes the one token for the unknown, however long it is.
    whole = model["type"] == "BPE" and all(bytes([value]) in pieces for value in range(256))
    strips = any(token.lstrip or token.rstrip for token in raw.get_added_tokens_decoder().values())
    steps = [step for part in (raw.normalizer, raw.pre_tokenizer) if part is not None for step in _steps_of(part)]
    if not whole or strips or not all(map(_keeps_text, steps)):
        return None
    shrink = _NFC_SHRINK if any(step["type"] == "NFC" for step in steps) else 1
    return shrink * max(map(len, pieces))


def _steps_of(part: Any) -> list[dict[str, Any]]:
    spec = json.loads(part.__getstate__())
    if spec["type"] != "Sequence":
        return [spec]
    steps: list[dict[str, Any]] = spec.get("normalizers") or spec.get("pretokenizers") or []
    return steps


def _keeps_text(step: dict[str, Any]) -> bool:
    kind = step["type"]
    if kind == "Replace":
        return step["pattern"] == {"String": " "} and bool(step["content"])
    if kind == "Split":
        return bool(step["behavior"] != "Removed")
    return kind in ("ByteLevel", "Digits", "Metaspace", "NFC", "Prepend")
