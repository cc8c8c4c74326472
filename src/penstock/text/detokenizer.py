"""Token ids → text, as they come."""

import codecs
from collections.abc import Collection, Iterable, Sequence

from penstock.core.plan import FinishReason
from penstock.text.stops import StopMatcher
from penstock.text.table import TokenStream, TokenTable

_utf8_decoder = codecs.getincrementaldecoder("utf-8")


class Detokenizer:
    """The text of one output: never half a character, and nothing that a stop string may yet cut off.

    It finds stop strings with the same matcher as the engine, so both agree on where the output ends. Bytes that are
    not UTF-8 become U+FFFD, as `bytes.decode("utf-8", "replace")` has it.
    """

    __slots__ = ("_decoder", "_include_stop", "_matcher", "_pending", "_stream")

    def __init__(
        self,
        table: TokenTable,
        stop: Sequence[str] = (),
        include_stop: bool = False,
        skip_special: bool = True,
        min_tokens: int = 0,
        kept_special: Collection[int] = (),
    ) -> None:
        self._stream = TokenStream(table, skip_special, kept_special)
        self._matcher = StopMatcher(stop, min_tokens) if stop else None
        self._include_stop = include_stop
        self._decoder = _utf8_decoder("replace")
        # Bytes that are not shown yet because a stop string may begin with them.
        self._pending = b""

    def push(self, tokens: Iterable[int]) -> str:
        """Take more tokens and return the text that can be shown now."""
        if self._matcher is None:
            return self._decoder.decode(b"".join(map(self._stream.next, tokens)))
        shown = bytearray()
        for token in tokens:
            shown += self._match(self._matcher, self._stream.next(token))
        return self._decoder.decode(shown)

    def finish(self, tokens: Sequence[int] = (), stopped_by_token: bool = False) -> str:
        """Take the last tokens and return the rest of the text.

        `stopped_by_token` says that the very last token ended the output by itself (end-of-sequence or a stop token);
        its own text is shown only where stop strings are.
        """
        text = self.push(tokens[:-1] if stopped_by_token and not self._include_stop else tokens)
        pending, self._pending = self._pending, b""
        return text + self._decoder.decode(pending, final=True)

    def advance(self, tokens: Sequence[int], finish: FinishReason | None, stopped_by_token: bool = False) -> str:
        """Take one `SampleOutput`'s tokens and return the text that can be shown now; see `finish`."""
        return self.push(tokens) if finish is None else self.finish(tokens, stopped_by_token)

    def _match(self, matcher: StopMatcher, piece: bytes) -> bytes:
        """Bytes that can be shown after one more piece."""
        if matcher.matched is not None:
            return b""
        pending = self._pending + piece
        matched = matcher.feed(piece)
        if matched is None:
            cut = len(pending) - matcher.held
            self._pending = pending[cut:]
            return pending[:cut]
        self._pending = b""
        end = len(pending) - matcher.overrun
        return pending[: end if self._include_stop else end - len(matched.encode("utf-8"))]
