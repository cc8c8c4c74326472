"""Log probabilities in the two forms of the OpenAI API."""

import codecs
from collections.abc import Sequence
from typing import Any, Protocol

from penstock.core.plan import TokenLogprobs
from penstock.text.table import TokenStream, TokenTable

# JSON has no -infinity; this is what OpenAI sends for a token that cannot be chosen.
_IMPOSSIBLE = -9999.0

_utf8_decoder = codecs.getincrementaldecoder("utf-8")


class LogprobWriter(Protocol):
    """Writes the log probabilities of one choice, part by part."""

    def write(self, entries: Sequence[TokenLogprobs]) -> dict[str, Any]:
        """The API's object for the next tokens."""


class ChatLogprobWriter:
    """`{"content": [{"token", "logprob", "bytes", "top_logprobs"}]}`."""

    def __init__(self, table: TokenTable | None) -> None:
        self._table = table

    def write(self, entries: Sequence[TokenLogprobs]) -> dict[str, Any]:
        """The API's object for the next tokens."""
        content = []
        for entry in entries:
            token = self._token(entry.token, entry.logprob)
            tops = zip(entry.top_tokens, entry.top_logprobs, strict=True)
            token["top_logprobs"] = [self._token(index, logprob) for index, logprob in tops]
            content.append(token)
        return {"content": content, "refusal": None}

    def _token(self, token: int, logprob: float) -> dict[str, Any]:
        piece = b"" if self._table is None else self._table.piece(token)
        if not piece:
            return {"token": _by_id(token), "logprob": max(logprob, _IMPOSSIBLE), "bytes": None}
        text = piece.decode("utf-8", "replace")
        return {"token": text, "logprob": max(logprob, _IMPOSSIBLE), "bytes": list(piece)}


class CompletionLogprobWriter:
    """`{"tokens", "token_logprobs", "top_logprobs", "text_offset"}`; offsets are characters of the choice's text."""

    def __init__(self, table: TokenTable | None, skip_special: bool, offset: int = 0) -> None:
        self._table = table
        self._stream = None if table is None else TokenStream(table, skip_special)
        self._decoder = _utf8_decoder("replace")
        self._offset = offset
        self._echoed: dict[str, list[Any]] = {}

    def echo(self, text: str, tokens: Sequence[int], entries: Sequence[TokenLogprobs | None], top: int) -> None:
        """Put the prompt's tokens before the first of the output; `text` is what is shown of them.

        A prompt's first token has no log probability.
        """
        self._echoed = {
            "tokens": [self._name(token) for token in tokens],
            "token_logprobs": [None if entry is None else max(entry.logprob, _IMPOSSIBLE) for entry in entries],
            "top_logprobs": [None if entry is None else self._tops(entry, top) for entry in entries],
            "text_offset": _offsets(self._table, text, tokens),
        }

    def write(self, entries: Sequence[TokenLogprobs]) -> dict[str, Any]:
        """The API's object for the next tokens."""
        offsets = []
        for entry in entries:
            offsets.append(self._offset)
            if self._stream is not None:
                self._offset += len(self._decoder.decode(self._stream.next(entry.token)))
        written: dict[str, list[Any]] = {
            "tokens": [self._name(entry.token) for entry in entries],
            "token_logprobs": [max(entry.logprob, _IMPOSSIBLE) for entry in entries],
            "top_logprobs": [self._tops(entry, len(entry.top_tokens)) for entry in entries],
            "text_offset": offsets,
        }
        echoed, self._echoed = self._echoed, {}
        return {name: echoed.get(name, []) + values for name, values in written.items()}

    def _tops(self, entry: TokenLogprobs, top: int) -> dict[str, float]:
        """The `top` most likely tokens, and the token itself where it is none of them."""
        likely = dict(zip(entry.top_tokens[:top], entry.top_logprobs[:top], strict=True))
        likely.setdefault(entry.token, entry.logprob)
        own = self._name(entry.token)
        named: dict[str, float] = {}
        for token, logprob in likely.items():
            name = self._name(token)
            # Several ids can have the same bytes. The text is the token's own, the others go by their ids.
            if name in named or (name == own and token != entry.token):
                name = _by_id(token)
            named[name] = max(logprob, _IMPOSSIBLE)
        return named

    def _name(self, token: int) -> str:
        """A token as text: bytes that are not UTF-8 are spelled out, as OpenAI does."""
        piece = b"" if self._table is None else self._table.piece(token)
        if not piece:
            return _by_id(token)
        try:
            return piece.decode("utf-8")
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in piece)


def _by_id(token: int) -> str:
    return f"token_id:{token}"


def _offsets(table: TokenTable | None, text: str, tokens: Sequence[int]) -> list[int]:
    """Where each of a prompt's tokens begins in its text, in which special tokens may stand or not."""
    if table is None:
        return [0] * len(tokens)
    stream, decoder = TokenStream(table, skip_special=True), _utf8_decoder("replace")
    offsets, offset = [], 0
    for token in tokens:
        # A tokenizer that changes what it reads may give other characters than it got.
        offsets.append(min(offset, len(text)))
        piece = decoder.decode(stream.next(token))
        if not piece and table.is_special(token):
            name = table.piece(token).decode("utf-8", "replace")
            piece = name if text.startswith(name, offset) else ""
        offset += len(piece)
    return offsets


def prompt_logprobs(
    table: TokenTable | None, entries: Sequence[TokenLogprobs | None], top: int
) -> list[dict[int, dict[str, Any]] | None]:
    """vLLM's form for a whole prompt: by token id the prompt's own token and the `top` most likely ones; null first."""
    return [None if entry is None else _by_token(table, entry, top) for entry in entries]


def _by_token(table: TokenTable | None, entry: TokenLogprobs, top: int) -> dict[int, dict[str, Any]]:
    likely = zip(entry.top_tokens[:top], entry.top_logprobs[:top], strict=True)
    # The prompt's own token comes first, wherever its rank places it.
    ranked = [(entry.token, entry.logprob, entry.rank)]
    ranked += [(token, logprob, rank) for rank, (token, logprob) in enumerate(likely, 1)]
    return {
        token: {"logprob": max(logprob, _IMPOSSIBLE), "rank": rank, "decoded_token": _text(table, token)}
        for token, logprob, rank in ranked
    }


def _text(table: TokenTable | None, token: int) -> str | None:
    piece = b"" if table is None else table.piece(token)
    return piece.decode("utf-8", "replace") if piece else None
