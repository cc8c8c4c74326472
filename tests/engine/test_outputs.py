"""What the client makes of events: deltas that may wait, and the scores of a prompt once they are complete."""

from penstock.core.events import KeptTokens, SampleOutput
from penstock.core.plan import TokenLogprobs
from penstock.engine.outputs import RequestState
from support.simulation import make_request


def score(token: int) -> TokenLogprobs:
    return TokenLogprobs(token, -float(token), [], [], 1)


def test_scores_wait_until_the_prompt_is_computed() -> None:
    state = RequestState(make_request(0, [5, 6, 7, 8], 2, prompt_logprobs=0), None)
    state.push(SampleOutput(0, 0, [], cached_tokens=0, prompt_logprobs=[score(6)]))
    assert not state.has_output
    state.push(SampleOutput(0, 0, [], prompt_logprobs=[score(7)]))
    state.push(SampleOutput(0, 0, [9], prompt_logprobs=[score(8)]))
    output = state.take()
    assert output.prompt_logprobs == [None, score(6), score(7), score(8)]
    assert [delta.token_ids for delta in output.deltas] == [[9]]
    state.push(SampleOutput(0, 0, [9], "length"))
    assert state.take().prompt_logprobs is None


def test_scores_may_come_with_the_end() -> None:
    state = RequestState(make_request(0, [5, 6], 0, prompt_logprobs=0), None)
    state.push(SampleOutput(0, 0, [], "length", prompt_logprobs=[score(6)]))
    output = state.take()
    assert output.finished and output.prompt_logprobs == [None, score(6)]


def test_a_prompt_of_one_token_has_none() -> None:
    state = RequestState(make_request(0, [5], 1, prompt_logprobs=0), None)
    state.push(SampleOutput(0, 0, [9], "length"))
    assert state.take().prompt_logprobs == [None]


def test_half_of_the_scores_are_nobodys() -> None:
    state = RequestState(make_request(0, [5, 6, 7], 1, prompt_logprobs=0), None)
    state.push(SampleOutput(0, 0, [], prompt_logprobs=[score(6)]))
    state.push(SampleOutput(0, 0, [], "error", error="It broke."))
    assert state.take().prompt_logprobs is None


def test_what_is_kept_is_told_from_the_first_token_on() -> None:
    state = RequestState(make_request(0, [5, 6], 2), None)
    state.push(SampleOutput(0, 0, [7], kept=KeptTokens(0, [2])))
    assert state.take().kept == KeptTokens(0, [2])
    state.push(SampleOutput(0, 0, [9], "length"))
    assert state.take().kept == KeptTokens(0, [2])


def test_nobody_gets_what_was_not_asked_for() -> None:
    state = RequestState(make_request(0, [5], 1), None)
    state.push(SampleOutput(0, 0, [9], "length"))
    assert state.take().prompt_logprobs is None
