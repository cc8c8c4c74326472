"""Token id → bytes, so that ids become text (and stop strings are found) without asking the tokenizer again.

Decoders of Hugging Face tokenizers are functions of the whole list of tokens. Those in use for language models are
functions of each token alone, except for the first token's leading space; a `TokenTable` holds the two results.
Other decoders are refused rather than approximated. One difference is meant: where byte tokens ("<0xE2>") do not add
up to UTF-8, the tokenizer replaces the valid bytes beside the invalid ones too, which cannot be known while streaming.
"""

import json
from collections.abc import Callable, Collection, Iterable, Sequence
from copy import copy
from typing import TYPE_CHECKING, Any

from penstock.core.errors import TokenizerError

if TYPE_CHECKING:
    from tokenizers import Tokenizer as RawTokenizer

# Far above any vocabulary. The table has a place for each id, and a file may name any id it likes.
_MOST_IDS = 1 << 22

Step = Callable[[str, bool], str]
"""(token, is the first of the output) → token."""


class TokenTable:
    """The bytes that each token id adds to the output.

    Attributes:
        pieces: bytes by token id; empty for an id that has no token.
        first_pieces: the same for a token that begins the output.
        strip: how many leading spaces are cut from the whole output.
        special: by token id, whether it is a special token.
    """

    __slots__ = ("first_pieces", "pieces", "special", "strip")

    def __init__(self, pieces: list[bytes], first_pieces: list[bytes], strip: int, special: Sequence[bool]) -> None:
        self.pieces = pieces
        self.first_pieces = first_pieces
        self.strip = strip
        self.special = special

    def __len__(self) -> int:
        return len(self.pieces)

    def piece(self, token: int) -> bytes:
        """Bytes of one token inside an output; empty where the id has no token."""
        return self.pieces[token] if 0 <= token < len(self.pieces) else b""

    def is_special(self, token: int) -> bool:
        """Whether the id has a token, and a special one."""
        return 0 <= token < len(self.pieces) and self.special[token]

    def decode(self, tokens: Iterable[int], skip_special: bool = True) -> str:
        """The text of a whole output."""
        stream = TokenStream(self, skip_special)
        return b"".join(stream.next(token) for token in tokens).decode("utf-8", "replace")


class TokenStream:
    """Bytes of one output, token by token. Both the engine and the detokenizer use it, so that they agree."""

    __slots__ = ("_kept", "_pieces", "_skip_special", "_special", "_started", "_strip", "_table")

    def __init__(self, table: TokenTable, skip_special: bool, kept: Collection[int] = ()) -> None:
        """Special tokens are skipped where `skip_special` says so, except for the ids in `kept`."""
        self._table = table
        self._pieces = table.pieces
        self._special = table.special
        self._skip_special = skip_special
        self._kept = kept
        self._strip = table.strip
        self._started = False

    def fork(self) -> "TokenStream":
        """The same, to go on by itself."""
        return copy(self)

    def next(self, token: int) -> bytes:
        """The bytes that `token` adds; empty for an id without a token and for a skipped special token."""
        if not 0 <= token < len(self._pieces):
            return b""
        if self._skip_special and self._special[token] and token not in self._kept:
            return b""
        piece = self._pieces[token]
        if self._started or not piece:
            return piece
        return self._first(token)

    def _first(self, token: int) -> bytes:
        piece = self._table.first_pieces[token]
        while self._strip and piece:
            if not piece.startswith(b" "):
                self._strip = 0
                break
            piece = piece[1:]
            self._strip -= 1
        # While spaces are still to be cut (only where more than one is), the next token takes the slow path again.
        self._started = not self._strip
        return piece


def build_table(raw: "RawTokenizer") -> TokenTable:
    """Make the table of a loaded tokenizer; raises TokenizerError where its decoder is not supported."""
    tokens = {index: token for token, index in raw.get_vocab(with_added_tokens=False).items()}
    added = raw.get_added_tokens_decoder()
    # The tokenizer decodes an added token to its normalized form, which is what it gives for the id.
    tokens.update((index, raw.id_to_token(index) or token.content) for index, token in added.items())
    size = max(tokens, default=-1) + 1
    if size > _MOST_IDS:
        raise TokenizerError(
            f"The tokenizer has a token of id {size - 1}, but ids must be below {_MOST_IDS}; its file is damaged."
        )
    # Whether a token is special is decided by its text, as the tokenizer does.
    special_texts = {raw.id_to_token(index) for index, token in added.items() if token.special}
    special = bytearray(size)
    for index, text in tokens.items():
        special[index] = text in special_texts

    decoder = raw.decoder
    spec = None if decoder is None else json.loads(decoder.__getstate__())
    rule = _read_decoder(spec)
    pieces = [b""] * size
    for index, text in tokens.items():
        pieces[index] = rule.piece(text, False)
    first_pieces = pieces
    if rule.first_differs:
        first_pieces = [b""] * size
        for index, text in tokens.items():
            first_pieces[index] = rule.piece(text, True)
    return TokenTable(pieces, first_pieces, rule.strip, [bool(flag) for flag in special])


class _Rule:
    """A decoder as a function of one token: text steps, then bytes, then a strip of the whole output."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.to_bytes: Callable[[str], bytes] = _utf8
        self.fused = False
        self.strip = 0
        self.first_differs = False

    def piece(self, token: str, first: bool) -> bytes:
        for step in self.steps:
            token = step(token, first)
        return self.to_bytes(token)


def _read_decoder(spec: dict[str, Any] | None) -> _Rule:
    rule = _Rule()
    if spec is None:
        # Without a decoder, tokens are joined by spaces.
        rule.steps.append(lambda token, first: token if first else " " + token)
        rule.first_differs = True
        return rule
    for step in _flatten(spec):
        _add_step(rule, step)
    return rule


def _flatten(spec: dict[str, Any]) -> list[dict[str, Any]]:
    if spec["type"] != "Sequence":
        return [spec]
    return [step for inner in spec["decoders"] for step in _flatten(inner)]


def _add_step(rule: _Rule, step: dict[str, Any]) -> None:
    kind = step["type"]
    if kind == "Fuse":
        rule.fused = True
    elif kind == "ByteLevel" and rule.to_bytes is _utf8 and not rule.fused:
        rule.to_bytes, rule.fused = _byte_level, True
    elif kind == "ByteFallback" and rule.to_bytes is _utf8 and not rule.fused:
        rule.to_bytes = _byte_fallback
    elif kind == "Strip" and step["content"] == " " and step["stop"] == 0 and not rule.strip:
        _add_strip(rule, int(step["start"]))
    elif kind == "Replace" and "String" in step["pattern"] and rule.to_bytes is _utf8 and not rule.fused:
        rule.steps.append(_replace(step["pattern"]["String"], step["content"]))
    elif kind == "Metaspace" and rule.to_bytes is _utf8 and not rule.fused:
        rule.steps.append(_metaspace(step["replacement"], drop_first=step["prepend_scheme"] != "never"))
        rule.first_differs = rule.first_differs or step["prepend_scheme"] != "never"
    elif kind == "WordPiece" and rule.to_bytes is _utf8 and not rule.fused:
        rule.steps.append(_word_piece(step["prefix"], cleanup=step["cleanup"]))
        rule.first_differs = True
    else:
        raise TokenizerError(
            f"The tokenizer's decoder step {json.dumps(step, ensure_ascii=False)} is not supported here; supported are "
            "ByteLevel, Metaspace, WordPiece, and sequences of Replace (of a string), ByteFallback, Fuse and Strip (of "
            "spaces at the start)."
        )


def _add_strip(rule: _Rule, count: int) -> None:
    if rule.fused:
        rule.strip = count
        return
    inner = rule.to_bytes

    def strip(token: str) -> bytes:
        data = inner(token)
        cut = len(data[:count]) - len(data[:count].lstrip(b" "))
        return data[cut:]

    rule.to_bytes = strip


def _replace(old: str, new: str) -> Step:
    return lambda token, first: token.replace(old, new)


def _metaspace(marker: str, drop_first: bool) -> Step:
    return lambda token, first: token.replace(marker, "" if first and drop_first else " ")


def _word_piece(prefix: str, *, cleanup: bool) -> Step:
    """Pieces within words have a prefix, and words a space before them, which cleaning up takes from some."""

    def step(token: str, first: bool) -> str:
        if not first:
            token = token.removeprefix(prefix) if token.startswith(prefix) else f" {token}"
        if cleanup:
            for old, new in _CLEANED:
                token = token.replace(old, new)
        return token

    return step


# In the order of the tokenizers library.
_CLEANED = (
    *((" .", "."), (" ?", "?"), (" !", "!"), (" ,", ","), (" ' ", "'"), (" n't", "n't"), (" 'm", "'m")),
    *((" do not", " don't"), (" 's", "'s"), (" 've", "'ve"), (" 're", "'re")),
)


def _utf8(token: str) -> bytes:
    return token.encode("utf-8")


def _byte_fallback(token: str) -> bytes:
    # Tokens such as "<0x0A>" stand for one byte.
    if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
        try:
            return bytes([int(token[3:5], 16)])
        except ValueError:
            pass
    return token.encode("utf-8")


def _byte_level_alphabet() -> dict[int, int]:
    """Character → byte of GPT-2's byte-level BPE (Radford et al., 2019): printable bytes stand for themselves."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    alphabet = {byte: byte for byte in printable}
    alphabet.update((0x100 + rank, byte) for rank, byte in enumerate(others))
    # A character below 0x100 that is not in the alphabet must fail to encode to latin-1, like those above.
    alphabet.update((byte, 0x200) for byte in others)
    return alphabet


_ALPHABET = _byte_level_alphabet()


def _byte_level(token: str) -> bytes:
    try:
        return token.translate(_ALPHABET).encode("latin-1")
    except UnicodeEncodeError:
        # A token with a character outside the alphabet (an added one) stands for its own text.
        return token.encode("utf-8")
