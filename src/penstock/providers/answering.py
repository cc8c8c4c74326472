"""Writes an answer in the client's dialect as its provider tells it."""

from collections.abc import Callable, Sequence
from typing import cast

from penstock.core.plan import Ending
from penstock.core.usage import Used
from penstock.engine.interface import RequestOutput, SampleDelta
from penstock.providers.errors import BrokenAnswer
from penstock.providers.outgoing import Outgoing
from penstock.providers.told import Step, ToldParsing, Usage
from penstock.text.pieces import CallStart, Piece, Reasoning

# More than any model's answer has.
_MOST_TOKENS = 1 << 24


class Answering:
    """One answer.

    Args:
        prompt: tokens of the prompt, about, for where the provider does not tell them.
        count: tokens of a text, for the same.

    Attributes:
        reached: whether the provider has the request and has not refused it, so that at least the prompt is paid for;
            None: it is not known yet.
    """

    def __init__(self, asked: Outgoing, prompt: int, count: Callable[[str], int]) -> None:
        job = asked.job()
        self._told = cast(ToldParsing, job.parsing)
        self._shows = self._told.reasoning_shown
        self._writer = asked.writing(job)
        # Other tools and instructions may be in it than where its tokens were counted.
        self._streams, self._prompt, self._count = job.stream, max(prompt, asked.prompt_tokens), count
        self._endings: list[Ending | None] = [None] * job.params[0].n
        self._usage: Usage | None = None
        self._texts: list[str] = []
        # How many of these were counted last, and their tokens.
        self._written = 0, 0
        self.reached: bool | None = None

    @property
    def has_begun(self) -> bool:
        """Whether anything of it has come."""
        return self._usage is not None or bool(self._texts)

    @property
    def is_estimated(self) -> bool:
        """Whether its provider has not said what it has used."""
        return self._usage is None or (not self.complete and self._usage.output < len(self._texts))

    @property
    def used(self) -> Used:
        """By all of it that has come. What is not told is counted, which takes a while: it is for the end."""
        prompt, cached, output, _ = self._counted()
        return Used(prompt, cached, output)

    def _counted(self) -> Usage:
        if self._usage is not None and self.complete:
            return self._usage
        if len(self._texts) > self._written[0]:
            self._written = len(self._texts), self._count("".join(self._texts))
        written = self._written[1]
        if self._usage is None:
            return Usage(self._prompt, 0, written)
        # At the beginning only the prompt may be told.
        return self._usage._replace(output=max(self._usage.output, written))

    @property
    def complete(self) -> bool:
        """Whether it is known of all answers how they ended."""
        return None not in self._endings

    def take(self, steps: Sequence[Step]) -> bytes:
        """What its client gets of these; nothing where the answer is wanted whole. Raises BrokenAnswer."""
        return b"".join(map(self._take, steps))

    def _take(self, step: Step) -> bytes:
        if step.usage is not None:
            if not all(0 <= each <= _MOST_TOKENS for each in step.usage):
                raise BrokenAnswer(f"it says that it has used {max(step.usage)} tokens")
            self._usage = step.usage
        if not 0 <= step.sample < len(self._endings):
            raise BrokenAnswer(f"it sends an answer {step.sample}, and {len(self._endings)} were asked for")
        if step.finish is not None:
            self._endings[step.sample] = Ending(step.finish, step.stop)
        pieces = [each for each in step.pieces if self._shows or not isinstance(each, Reasoning)]
        self._texts += (each.name if isinstance(each, CallStart) else each.text for each in step.pieces)
        if not pieces:
            return b""
        if step.call_id:
            self._told.call_ids.append(step.call_id)
        return self._write(step.sample, pieces, SampleDelta(step.sample, "", []))

    def end(self) -> bytes:
        """The rest of a stream, or the whole answer, once nothing more comes. Raises BrokenAnswer."""
        if not self.complete:
            raise BrokenAnswer("it ended its answer before that was complete")
        usage = self._counted()
        self._told.reasoned.append(usage.reasoning)
        written = []
        for index, ending in enumerate(self._endings):
            # The ids of tokens are not known: zeros stand for them, and are counted.
            ids = [0] * usage.output if index == 0 else []
            written.append(self._write(index, (), SampleDelta(index, "", ids, ending=ending)))
        return b"".join(written) + self._writer.end() if self._streams else self._writer.body()

    def _write(self, index: int, pieces: Sequence[Piece], delta: SampleDelta) -> bytes:
        self._told.parsers[index].put(pieces)
        usage = self._usage or Usage(self._prompt, 0, 0)
        output = RequestOutput(0, [delta], usage.prompt, usage.cached, None, finished=delta.ending is not None)
        if self._streams:
            return self._writer.chunk(output)
        self._writer.add(output)
        return b""
