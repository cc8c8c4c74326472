"""What the client makes of events: deltas that may wait, and the scores of a prompt once they are complete."""

from typing import Any

import msgspec
import pytest

from penstock.core.beam_search import BeamScore, BeamSearch
from penstock.core.errors import PenstockError, RowFailed, StepOutOfMemory
from penstock.core.events import KeptTokens, RequestTimings, SampleOutput
from penstock.core.facts import StepTotals
from penstock.core.plan import Ending, Gained, TokenLogprobs, failed
from penstock.core.request import Request
from penstock.core.sampling import SamplingParams
from penstock.engine.journal import Mark
from penstock.engine.outputs import OutputChanged, RequestState
from penstock.text.table import TokenTable
from support.endings import finish_of
from support.simulation import make_request

START = Mark(1.0, StepTotals())


def score(token: int) -> TokenLogprobs:
    return TokenLogprobs(token, -float(token), [], [], 1)


def test_scores_wait_until_the_prompt_is_computed() -> None:
    state = RequestState(make_request(0, [5, 6, 7, 8], 2, prompt_logprobs=0), None, START)
    state.push(SampleOutput(0, 0, Gained([], prompt_logprobs=[score(6)]), cached_tokens=0), START)
    assert not state.has_output
    state.push(SampleOutput(0, 0, Gained([], prompt_logprobs=[score(7)])), START)
    state.push(SampleOutput(0, 0, Gained([9], prompt_logprobs=[score(8)])), START)
    output = state.take()
    assert output.prompt_logprobs == [None, score(6), score(7), score(8)]
    assert [delta.token_ids for delta in output.deltas] == [[9]]
    state.push(SampleOutput(0, 0, Gained([9], Ending("length"))), START)
    assert state.take().prompt_logprobs is None


def test_times_are_those_of_the_events() -> None:
    state = RequestState(make_request(0, [5], 3, n=2), None, START)
    for at, sample, ending in ((2.0, 0, None), (3.0, 1, None), (4.0, 0, Ending("length")), (5.0, 1, Ending("length"))):
        state.push(SampleOutput(0, sample, Gained([7], ending)), Mark(at, StepTotals()))
    assert state.timings == RequestTimings(1.0, 2.0, 5.0)
    # A reader that leaves afterwards ends nothing.
    state.journal.end(Mark(6.0, StepTotals()))
    assert state.timings == RequestTimings(1.0, 2.0, 5.0)


def test_beams_say_that_they_are_computed_and_then_what_they_found() -> None:
    request = make_request(0, [5, 6], 3, n=2, beam=BeamSearch(width=4), prompt_logprobs=0)
    state = RequestState(request, None, START)
    state.push(SampleOutput(0, 0, Gained([], prompt_logprobs=[score(6)]), cached_tokens=0), START)
    assert not state.has_output
    state.push(SampleOutput(0, 0, Gained([], searched=4)), Mark(2.0, StepTotals()))
    begun = state.take()
    assert [(delta.token_ids, delta.text, delta.ending) for delta in begun.deltas] == [([], "", None)]
    assert begun.prompt_logprobs == [None, score(6)]
    state.push(SampleOutput(0, 0, Gained([], searched=3)), Mark(3.0, StepTotals()))
    assert not state.has_output
    for sample in (0, 1):
        gained = Gained([7, 8], Ending("length"), beam=BeamScore(-3.0, -1.5 - sample))
        state.push(SampleOutput(0, sample, gained), Mark(4.0, StepTotals()))
    found = state.take()
    assert found.finished
    assert [delta.beam for delta in found.deltas] == [BeamScore(-3.0, -1.5), BeamScore(-3.0, -2.5)]
    assert state.timings == RequestTimings(1.0, 2.0, 4.0)
    assert (state.journal.searched_tokens, state.journal.output_tokens) == (7, 4)


def test_scores_may_come_with_the_end() -> None:
    state = RequestState(make_request(0, [5, 6], 0, prompt_logprobs=0), None, START)
    state.push(SampleOutput(0, 0, Gained([], Ending("length"), prompt_logprobs=[score(6)])), START)
    output = state.take()
    assert output.finished and output.prompt_logprobs == [None, score(6)]


def test_a_prompt_of_one_token_has_none() -> None:
    state = RequestState(make_request(0, [5], 1, prompt_logprobs=0), None, START)
    state.push(SampleOutput(0, 0, Gained([9], Ending("length"))), START)
    assert state.take().prompt_logprobs == [None]


def test_half_of_the_scores_are_nobodys() -> None:
    state = RequestState(make_request(0, [5, 6, 7], 1, prompt_logprobs=0), None, START)
    state.push(SampleOutput(0, 0, Gained([], prompt_logprobs=[score(6)])), START)
    state.push(SampleOutput(0, 0, failed("It broke.")), START)
    assert state.take().prompt_logprobs is None


def test_what_is_kept_is_told_from_the_first_token_on() -> None:
    state = RequestState(make_request(0, [5, 6], 2), None, START)
    state.push(SampleOutput(0, 0, Gained([7]), kept=KeptTokens(0, [2])), START)
    assert state.take().kept == KeptTokens(0, [2])
    state.push(SampleOutput(0, 0, Gained([9], Ending("length"))), START)
    assert state.take().kept == KeptTokens(0, [2])


def test_what_was_dropped_is_the_most_that_any_engine_has_told() -> None:
    state = RequestState(make_request(0, [5, 6], 4), None, START)
    state.push(SampleOutput(0, 0, Gained([7]), dropped=32), START)
    assert state.take().dropped_tokens == 32
    state.push(SampleOutput(0, 0, Gained([8])), START)
    assert state.take().dropped_tokens == 32, "events tell of changes only"
    begun_again(state).push(SampleOutput(1, 0, Gained([7, 8])), START)
    assert state.take().dropped_tokens == 32
    state.push(SampleOutput(1, 0, Gained([9])), START)
    assert state.take().dropped_tokens == 32
    state.push(SampleOutput(1, 0, Gained([10], Ending("length")), dropped=48), START)
    assert state.take().dropped_tokens == 48


def test_nobody_gets_what_was_not_asked_for() -> None:
    state = RequestState(make_request(0, [5], 1), None, START)
    state.push(SampleOutput(0, 0, Gained([9], Ending("length"))), START)
    assert state.take().prompt_logprobs is None


def begun_again(state: RequestState) -> RequestState:
    state.begin_again(make_request(1, state.request.prompt_token_ids, 4, n=state.request.sampling.n))
    return state


def test_a_row_that_fails_in_the_next_engine_fails_however_far_it_was() -> None:
    state = RequestState(make_request(0, [5], 4), None, START)
    state.push(SampleOutput(0, 0, Gained([7, 8])), START)
    state.take()
    begun_again(state).push(SampleOutput(1, 0, Gained([7])), START)
    assert not state.has_output
    state.push(SampleOutput(1, 0, failed("It broke.")), START)
    (delta,) = state.take().deltas
    assert (delta.token_ids, delta.ending) == ([], Ending("error", error="It broke."))


@pytest.mark.parametrize(("code", "kind"), [(None, RowFailed), (StepOutOfMemory.code, StepOutOfMemory)])
def test_what_failed_is_raised_as_what_it_was(code: str | None, kind: type[PenstockError]) -> None:
    state = RequestState(make_request(0, [5], 4), None, START)
    state.push(SampleOutput(0, 0, failed("It broke.", code)), START)
    (delta,) = state.take().deltas
    with pytest.raises(kind, match="It broke"):
        delta.check()


def test_a_sample_that_has_failed_stays_so_whatever_the_next_engine_makes_of_it() -> None:
    state = RequestState(make_request(0, [5], 4, n=2), None, START)
    state.push(SampleOutput(0, 0, failed("It broke.")), START)
    state.push(SampleOutput(0, 1, Gained([8])), START)
    state.take()
    begun_again(state).push(SampleOutput(1, 0, Gained([7])), START)
    state.push(SampleOutput(1, 1, Gained([8])), START)
    assert not state.has_output
    state.push(SampleOutput(1, 0, Gained([9], Ending("stop"))), START)
    state.push(SampleOutput(1, 1, Gained([9], Ending("stop"))), START)
    output = state.take()
    assert output.finished and [(delta.index, delta.token_ids) for delta in output.deltas] == [(1, [9])]


def test_a_sample_that_failed_in_an_earlier_engine_is_still_computed_by_the_next() -> None:
    state = RequestState(make_request(0, [5], 4, n=2), None, START)
    state.push(SampleOutput(0, 0, failed("It broke.")), START)
    assert not state.closed
    begun_again(state).push(SampleOutput(1, 1, Gained([8], Ending("stop"))), START)
    assert state.finished and not state.closed
    state.push(SampleOutput(1, 0, Gained([7], Ending("stop"))), START)
    assert state.closed


def test_an_output_that_ends_earlier_than_before_has_changed() -> None:
    state = RequestState(make_request(0, [5], 4), None, START)
    state.push(SampleOutput(0, 0, Gained([7, 8])), START)
    with pytest.raises(OutputChanged):
        begun_again(state).push(SampleOutput(1, 0, Gained([7], Ending("stop"))), START)


def test_scores_that_come_again_are_no_output() -> None:
    state = RequestState(make_request(0, [5, 6, 7], 4, prompt_logprobs=0), None, START)
    state.push(SampleOutput(0, 0, Gained([8], prompt_logprobs=[score(6), score(7)])), START)
    state.take()
    begun_again(state).push(SampleOutput(1, 0, Gained([], prompt_logprobs=[score(6)])), START)
    assert not state.has_output


def request_with(**params: Any) -> Request:
    return Request(request_id=0, prompt_token_ids=[5], sampling=SamplingParams(max_tokens=9, **params))


def test_a_delta_can_be_taken_apart_token_by_token() -> None:
    pieces = [b"a", "é".encode()[:1], "é".encode()[1:], b"b", b"STOP"]
    table = TokenTable(pieces, pieces, 0, [False] * 5)
    state = RequestState(request_with(logprobs=0, stop=("bc",)), table, START)
    state.push(SampleOutput(0, 0, Gained([0, 1], logprobs=[score(0), score(1)])), START)
    state.push(SampleOutput(0, 0, Gained([2], logprobs=[score(2)])), START)
    state.push(SampleOutput(0, 0, Gained([3, 0], Ending("length"), logprobs=[score(3), score(0)])), START)
    (delta,) = state.take().deltas
    parts = delta.by_token()
    # Text lags behind where a character, or what may be a stop string, is not complete.
    assert [part.text for part in parts] == ["a", "", "é", "", "ba"]
    assert [part.token_ids for part in parts] == [[0], [1], [2], [3], [0]]
    assert [part.logprobs for part in parts] == [[score(token)] for token in (0, 1, 2, 3, 0)]
    assert [finish_of(part) for part in parts] == [None] * 4 + ["length"]
    assert parts[0].by_token() == [parts[0]]


def test_the_end_goes_with_the_last_token() -> None:
    pieces = [b"a", b"b"]
    state = RequestState(request_with(stop=("bc",)), TokenTable(pieces, pieces, 0, [False] * 2), START)
    state.push(SampleOutput(0, 0, Gained([0, 1])), START)
    state.push(SampleOutput(0, 0, failed("It broke.")), START)
    first, last = state.take().deltas[0].by_token()
    assert (first.text, finish_of(first)) == ("a", None)
    assert (last.text, last.ending) == ("b", Ending("error", error="It broke."))


def test_what_another_server_has_given_comes_first_and_is_not_given_twice() -> None:
    """The last tokens of it are generated again, and are the same."""
    request = msgspec.structs.replace(make_request(0, [5], 9), output=(1, 2))
    state = RequestState(request, None, START)
    state.begin_with((1, 2, 3, 4))
    assert [delta.token_ids for delta in state.take().deltas] == [[1, 2, 3, 4]]
    state.push(SampleOutput(0, 0, Gained([3]), cached_tokens=1), START)
    assert not state.has_output
    state.push(SampleOutput(0, 0, Gained([4, 6])), START)
    assert [delta.token_ids for delta in state.take().deltas] == [[6]]
    # Where the engine fails, another one begins where it did.
    state.begin_again(request)
    state.push(SampleOutput(0, 0, Gained([3, 4, 6, 7])), START)
    assert [delta.token_ids for delta in state.take().deltas] == [[7]]


def test_an_engine_that_gives_something_else_is_found_out() -> None:
    state = RequestState(msgspec.structs.replace(make_request(0, [5], 9), output=(1, 2)), None, START)
    state.begin_with((1, 2, 3, 4))
    with pytest.raises(OutputChanged):
        state.push(SampleOutput(0, 0, Gained([9]), cached_tokens=1), START)
