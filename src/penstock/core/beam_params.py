"""What `LLM.beam_search` is asked for, by the names that users of vLLM know."""

import msgspec

from penstock.core.beam_search import BeamSearch, EarlyStopping
from penstock.core.sampling import SamplingParams


class BeamSearchParams(msgspec.Struct, frozen=True, kw_only=True):
    """How outputs are searched for, and when one ends. `sampling` raises `InvalidParameter`.

    Attributes:
        beam_width, length_penalty, early_stopping: as in `BeamSearch`.
        max_tokens: most output tokens; None means up to the model's context.
        n: how many outputs are wanted, at most `beam_width`; None: all of these.
        ignore_eos, min_tokens, stop, stop_token_ids, include_stop_str_in_output, logprobs: as in `SamplingParams`,
            which has more.
    """

    beam_width: int
    max_tokens: int | None = None
    length_penalty: float = 1.0
    early_stopping: EarlyStopping = False
    n: int | None = None
    ignore_eos: bool = False
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    include_stop_str_in_output: bool = False
    logprobs: int | None = None

    def sampling(self) -> SamplingParams:
        """The same as parameters of a request."""
        beam = BeamSearch(width=self.beam_width, length_penalty=self.length_penalty, early_stopping=self.early_stopping)
        return SamplingParams(
            n=self.beam_width if self.n is None else self.n,
            temperature=0.0,
            beam=beam,
            max_tokens=self.max_tokens,
            min_tokens=self.min_tokens,
            ignore_eos=self.ignore_eos,
            stop=self.stop,
            stop_token_ids=self.stop_token_ids,
            include_stop_str_in_output=self.include_stop_str_in_output,
            logprobs=self.logprobs,
        )
