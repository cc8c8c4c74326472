"""Harmony, the format of gpt-oss's outputs: messages with a header each, which says for whom they are.

    <|channel|>analysis<|message|>…<|end|><|start|>assistant<|channel|>final<|message|>…

A message in the channel "analysis" is reasoning, one in "final" or "commentary" is for the reader. One whose header has
`to=functions.NAME` is a call of that tool, with its arguments as JSON; `<|call|>` ends it, and the output.
Source: OpenAI, "OpenAI harmony response format", 2025.
"""

import codecs
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from penstock.text.pieces import CallArguments, CallStart, Content, Piece, Reasoning, beginning_at_end, joined
from penstock.text.table import TokenStream

START, CHANNEL, MESSAGE, END = "<|start|>", "<|channel|>", "<|message|>", "<|end|>"
CONSTRAIN, CALL, RETURN = "<|constrain|>", "<|call|>", "<|return|>"
HARMONY_MARKERS = (START, CHANNEL, MESSAGE, END, CONSTRAIN, CALL, RETURN)
# What ends a reasoning, and what then begins an answer.
REASONING_END, ANSWER_BEGINNING = f"{END}{START}assistant", f"{CHANNEL}final{MESSAGE}"

# What may come next after a body, and what an output's first header may begin with.
_ENDS = (END, CALL, RETURN, START, CHANNEL)
_BEGINNINGS = (CHANNEL, START, MESSAGE, " to=")
_RECIPIENT, _CHANNEL = re.compile(r"to=([^\s<]+)"), re.compile(r"<\|channel\|>\s*(\w+)")
_FUNCTIONS = "functions."

Kind = Literal["content", "reasoning", "call"]

HARMONY = "harmony"


class HarmonyParser:
    """Cuts an output into pieces (`OutputParser`). Text without a header is for the reader.

    Attributes:
        done: the wanted number of calls is complete; all that follows is left out.
        answers: whether no reasoning can follow, which is never certain: each message may be one.
    """

    answers = False

    def __init__(self, most_calls: int | None = None, *, tools: bool = True, shown: bool = True) -> None:
        """Without `tools`, a call is for the reader. Reasoning that is not to be `shown` is left out."""
        self.done = False
        self._most_calls, self._tools, self._shown = most_calls, tools, shown
        self._pieces: list[Piece] = []
        # What is taken and not told: a header, or what may be the beginning of a mark.
        self._held = ""
        # None in a header, and between messages.
        self._body: Kind | None = None
        self._begun = False
        self._calls = 0
        self._arguments: list[str] = []
        self._lost = False

    @property
    def inside(self) -> bool:
        """Whether the text is that of a reasoning."""
        return self._body == "reasoning"

    @property
    def calls_whole(self) -> bool:
        """Whether no call that was told lacks a part of its arguments, so far."""
        return not self._lost and (self._body != "call" or _is_object("".join(self._arguments)))

    def feed(self, text: str) -> Sequence[Piece]:
        """Take more text; what is certain now."""
        self._held += text
        while self._held and not self.done and self._step():
            pass
        return self._take_pieces()

    def finish(self) -> Sequence[Piece]:
        """The text has ended; the rest. A header that has no message is nothing."""
        if not self.done and self._held and (self._body is not None or not self._begun):
            self._tell(self._held)
        self._held = ""
        self._end_message()
        return self._take_pieces()

    def _step(self) -> bool:
        """Take what can be taken of what is held; whether there may be more."""
        if self._body is not None:
            return self._take_body()
        if not self._begun:
            begins = any(self._held.startswith(mark) for mark in _BEGINNINGS)
            if not begins and any(mark.startswith(self._held) for mark in _BEGINNINGS):
                return False
            self._begun = True
            if not begins:
                self._body = "content"
                return True
        header, mark, rest = self._held.partition(MESSAGE)
        if not mark:
            return False
        self._held = rest
        self._begin_message(header)
        return True

    def _take_body(self) -> bool:
        found = [(place, mark) for mark in _ENDS if (place := self._held.find(mark)) >= 0]
        if found:
            place, mark = min(found)
            self._tell(self._held[:place])
            # A mark that begins a header stays its beginning.
            self._held = self._held[place + len(mark) if mark in (END, CALL, RETURN) else place :]
            self._end_message()
            return True
        cut = len(self._held) - max(beginning_at_end(self._held, mark) for mark in _ENDS)
        self._tell(self._held[:cut])
        self._held = self._held[cut:]
        return False

    def _begin_message(self, header: str) -> None:
        recipient, channel = _RECIPIENT.search(header), _CHANNEL.search(header)
        if recipient is not None and recipient[1].startswith(_FUNCTIONS) and self._tools:
            self._body = "call"
            self._pieces.append(CallStart(self._calls, recipient[1].removeprefix(_FUNCTIONS)))
        else:
            self._body = "reasoning" if channel is not None and channel[1] == "analysis" else "content"

    def _end_message(self) -> None:
        if self._body == "call":
            self._lost |= not self.calls_whole
            self._calls += 1
            self._arguments.clear()
            self.done = self._most_calls is not None and self._calls >= self._most_calls
        self._body = None

    def _tell(self, text: str) -> None:
        if not text:
            return
        if self._body == "call":
            self._arguments.append(text)
            self._pieces.append(CallArguments(self._calls, text))
        elif self._body == "reasoning":
            if self._shown:
                self._pieces.append(Reasoning(text))
        else:
            self._pieces.append(Content(text))

    def _take_pieces(self) -> list[Piece]:
        pieces, self._pieces = joined(self._pieces), []
        return pieces


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


class HarmonyCount:
    """Counts the tokens of an output's reasoning, without those of headers and marks.

    Attributes:
        tokens: those that are surely reasoning.
        over: the rest cannot be reasoning: the output has ended.
    """

    __slots__ = ("_characters", "_parser", "_stream", "over", "tokens")

    def __init__(self, stream: TokenStream) -> None:
        """`stream` gives the output's text with the marks."""
        self._stream = stream
        self._parser = HarmonyParser()
        self._characters = codecs.getincrementaldecoder("utf-8")("replace")
        self.tokens = 0
        self.over = False

    def take(self, tokens: Iterable[int]) -> None:
        """Take the next tokens of the output."""
        for token in tokens:
            before = self._parser.inside
            self._parser.feed(self._characters.decode(self._stream.next(token)))
            self.tokens += before and self._parser.inside

    def finish(self) -> None:
        """No more tokens come: what was held back is no reasoning."""
        self.over = True


def before_final(*, reasons: bool, final: bool, special_markers: Mapping[str, int]) -> str:
    """What comes before an answer that is held to a grammar, as `Grammar.thought` has it.

    Args:
        reasons: whether there may be a reasoning.
        final: whether the header of the final message comes too; else the grammar has headers of its own.
        special_markers: ids of the marks that are special tokens.
    """

    def mark(text: str) -> str:
        index = special_markers.get(text)
        return json.dumps(text) if index is None else f"<[{index}]>"

    parts, rules = [], [r"OPENING: /<\|message\|>(?s:.*)/"]
    if reasons:
        # Special tokens are no text, so that text ends where one comes.
        special = END in special_markers
        rules.append(r"ANALYSED: /(?s:.*)/" if special else r"analysed[lazy]: /(?s:.*)<\|end\|>/")
        body = f"ANALYSED {mark(END)}" if special else "analysed"
        parts.append(f'({mark(CHANNEL)} "analysis" {mark(MESSAGE)} {body} {mark(START)} "assistant")?')
    if final:
        parts.append(f'{mark(CHANNEL)} "final" {mark(MESSAGE)}')
    return "\n".join([*rules, f"thought: {' '.join(parts)}"]) if parts else ""
