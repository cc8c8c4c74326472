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


class ChatLogprobs:
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
            return {"token": f"token_id:{token}", "logprob": max(logprob, _IMPOSSIBLE), "bytes": None}
        text = piece.decode("utf-8", "replace")
        return {"token": text, "logprob": max(logprob, _IMPOSSIBLE), "bytes": list(piece)}


class CompletionLogprobs:
    """`{"tokens", "token_logprobs", "top_logprobs", "text_offset"}`; offsets are characters of the choice's text."""

    def __init__(self, table: TokenTable | None, skip_special: bool, offset: int = 0) -> None:
        self._table = table
        self._stream = None if table is None else TokenStream(table, skip_special)
        self._decoder = _utf8_decoder("replace")
        self._offset = offset

    def write(self, entries: Sequence[TokenLogprobs]) -> dict[str, Any]:
        """The API's object for the next tokens."""
        offsets, tops = [], []
        for entry in entries:
            offsets.append(self._offset)
            if self._stream is not None:
                self._offset += len(self._decoder.decode(self._stream.next(entry.token)))
            best = zip(entry.top_tokens, entry.top_logprobs, strict=True)
            tops.append({self._name(token): max(logprob, _IMPOSSIBLE) for token, logprob in best})
        return {
            "tokens": [self._name(entry.token) for entry in entries],
            "token_logprobs": [max(entry.logprob, _IMPOSSIBLE) for entry in entries],
            "top_logprobs": tops,
            "text_offset": offsets,
        }

    def _name(self, token: int) -> str:
        """A token as text that no other token has: bytes that are not UTF-8 are spelled out, as OpenAI does."""
        piece = b"" if self._table is None else self._table.piece(token)
        if not piece:
            return f"token_id:{token}"
        try:
            return piece.decode("utf-8")
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in piece)
