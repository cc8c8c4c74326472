"""Finished requests as values."""

from dataclasses import dataclass

from penstock.core.beam_search import BeamScore
from penstock.core.errors import EngineError
from penstock.core.events import RequestTimings
from penstock.core.plan import FinishReason, TokenLogprobs
from penstock.engine.interface import SampleDelta
from penstock.engine.outputs import RequestState


@dataclass(frozen=True)
class Sample:
    """One finished sample of a request.

    Attributes:
        text: without special tokens and stop strings, unless asked for; empty where no tokenizer is loaded.
        token_ids: every generated id, the one that ended the output included.
        logprobs: one entry per token where asked for.
        finish_reason: "stop", "length", "abort" or "error".
        stop_reason: the stop string or stop token id; None at end-of-sequence.
        error: the cause where finish_reason is "error".
        beam: of an output of beam search, how likely it is.
    """

    text: str
    token_ids: list[int]
    logprobs: list[TokenLogprobs] | None
    finish_reason: FinishReason
    stop_reason: int | str | None
    error: str | None
    beam: BeamScore | None = None


@dataclass(frozen=True)
class Completion:
    """All samples of one prompt, with the first one's fields at hand.

    Attributes:
        prompt_token_ids: as computed.
        samples: `n` of them, by index.
        seed: what the random numbers came from; drawn where none was given.
        cached_tokens: prompt tokens that the prefix cache gave.
        timings: seconds on this process's monotonic clock.
        prompt_logprobs: where asked for, one entry for each token of the prompt, None for the first. None in place of
            the list where the request failed before its prompt was computed.
        dropped_tokens: of a request with a policy for its context, how many of its tokens were dropped. Where none
            were, its output is what it would be without the policy.
    """

    prompt_token_ids: list[int]
    samples: tuple[Sample, ...]
    seed: int
    cached_tokens: int
    timings: RequestTimings
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    dropped_tokens: int = 0

    @property
    def text(self) -> str:
        """The text of the first sample."""
        return self.samples[0].text

    @property
    def token_ids(self) -> list[int]:
        """The output tokens of the first sample."""
        return self.samples[0].token_ids

    @property
    def logprobs(self) -> list[TokenLogprobs] | None:
        """Log probabilities of the first sample; None unless they were asked for."""
        return self.samples[0].logprobs

    @property
    def finish_reason(self) -> FinishReason:
        """Why the first sample ended."""
        return self.samples[0].finish_reason


def completion_of(state: RequestState) -> Completion:
    """A finished request whose output was not taken before, so that each sample is one delta."""
    request, output = state.request, state.take()
    assert output.seed is not None, "an engine tells it"
    return Completion(
        prompt_token_ids=list(request.given),
        samples=tuple(_sample(delta) for delta in output.deltas),
        seed=output.seed,
        cached_tokens=output.cached_tokens,
        timings=state.timings,
        prompt_logprobs=output.prompt_logprobs,
        dropped_tokens=output.dropped_tokens,
    )


def _sample(delta: SampleDelta) -> Sample:
    ending = delta.ending
    if ending is None:
        raise EngineError("A sample was collected before it had finished.")
    return Sample(
        text=delta.text,
        token_ids=delta.token_ids,
        logprobs=delta.logprobs,
        finish_reason=ending.reason,
        stop_reason=ending.stop_reason,
        error=ending.error,
        beam=delta.beam,
    )
