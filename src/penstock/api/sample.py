"""What of a sample is part of the answer, whichever dialect tells it: its tokens, how many, and how it ended."""

from collections.abc import Iterator

from penstock.api.job import Job
from penstock.core.plan import Ending
from penstock.engine.interface import SampleDelta
from penstock.text.output_format import TokenCount
from penstock.text.table import TokenStream, TokenTable


class Tally:
    """How many tokens the samples of one response have, and how many of them are reasoning."""

    __slots__ = ("reasoning_tokens", "tokens")

    def __init__(self) -> None:
        self.tokens = self.reasoning_tokens = 0


class Sample:
    """One sample of a response.

    Attributes:
        ending: of its answer; None while it goes on.
        cut: its answer is complete although the engine goes on with it.
        bounded: its answer can be complete before the engine ends it.
    """

    __slots__ = ("_reasoning", "_tally", "bounded", "cut", "ending")

    def __init__(self, tally: Tally, *, reasoning: TokenCount | None = None, bounded: bool = False) -> None:
        self._tally = tally
        self._reasoning = reasoning
        self.bounded = bounded
        self.ending: Ending | None = None
        self.cut = False

    def parts(self, delta: SampleDelta) -> Iterator[SampleDelta]:
        """What of a delta is part of the answer, counted as it is taken.

        Where an answer can be complete within a delta, it comes token by token, so that what is left out does not
        depend on how many tokens came together. Raises RowFailed, StepOutOfMemory or EngineUnavailable where the sample
        has failed.
        """
        for part in delta.by_token() if self.bounded else (delta,):
            if self.counts(part):
                yield part

    def counts(self, part: SampleDelta) -> bool:
        """Whether a part of a delta is part of the answer, which is counted then. Raises as `parts` does."""
        if self.ending is not None:
            self.cut = self.cut and part.ending is None
            return False
        if part.ending is not None:
            part.check()
            self.ending = part.ending
        self._tally.tokens += len(part.token_ids)
        count = self._reasoning
        if count is not None and not count.over:
            before = count.tokens
            count.take(part.token_ids)
            if self.ending is not None:
                count.finish()
            self._tally.reasoning_tokens += count.tokens - before
        return True

    def complete(self) -> None:
        """The answer is complete with the part that was taken last: what follows is left out."""
        self.cut = self.ending is None
        self.ending = Ending("stop")


def sample_of(job: Job, prompt: int, table: TokenTable | None, tally: Tally) -> Sample:
    """A sample of one of the job's prompts."""
    params, parsing = job.params[prompt], job.parsing
    if parsing is None:
        return Sample(tally)
    stream = None if table is None else TokenStream(table, params.skip_special_tokens, params.kept_special_tokens)
    return Sample(tally, reasoning=parsing.reasoning_count(stream), bounded=parsing.most_calls is not None)
