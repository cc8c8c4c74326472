"""An engine client that says for each sample what the test wants, ended where a real row ends, in lumps of any size."""

import asyncio
import itertools
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence

from msgspec.structs import replace

from penstock.core.events import SampleOutput
from penstock.core.facts import StepTotals
from penstock.core.kv_policy import KVPolicy
from penstock.core.plan import BeginRow, Ending, Gained, TokenLogprobs
from penstock.core.request import EVERYBODY, KeptPrefix, Request, Standing
from penstock.core.sampling import SamplingParams
from penstock.engine.interface import RequestOutput
from penstock.engine.journal import Journal, Mark
from penstock.engine.outputs import RequestState
from penstock.sampling.row import RowState
from penstock.text.stops import StopMatcher
from penstock.text.table import TokenStream, TokenTable
from support.scripted_engine import Call, ScriptedEngine

SEED = 7
START = Mark(0.0, StepTotals())


class _Stops:
    """Finds a row's stop strings, as the executor does."""

    def __init__(self, table: TokenTable, params: SamplingParams) -> None:
        self._stream = TokenStream(table, params.skip_special_tokens, params.kept_special_tokens)
        self._matcher = StopMatcher(params.stop, params.min_tokens)

    def find(self, token: int) -> str | None:
        return self._matcher.feed(self._stream.next(token))


class ReplayingEngine(ScriptedEngine):
    """Each sample says `said` of its number, and then the end of sequence.

    Rows end it as in a real engine, and what the server gets is put together by the real client of one.

    Attributes:
        said: token ids of each sample; sample i of a request has those of i.
        lumps: how many tokens of a sample come at once, and how many such events before the server takes them, in turn.
    """

    def __init__(self, table: TokenTable, eos: int, **model: object) -> None:
        super().__init__(table, [eos], eos_token_ids=(eos,), **model)
        self.table = table
        self.said: Sequence[Sequence[int]] = [[]]
        self.lumps: Sequence[tuple[int, int]] = [(1, 1)]

    async def generate(
        self,
        prompt_token_ids: list[int],
        params: SamplingParams,
        *,
        standing: Standing = EVERYBODY,
        keep: tuple[KeptPrefix, ...] = (),
        keep_whole: float = 0.0,
        output: tuple[int, ...] = (),
        kv_policy: KVPolicy | None = None,
        forced_bos: int | None = None,
        offered_at: str = "",
        follow: Callable[[Journal], None] | None = None,
    ) -> AsyncGenerator[RequestOutput]:
        self.calls.append(Call(prompt_token_ids, params, standing, keep, kv_policy))
        params = replace(params, seed=SEED)
        request = Request(
            request_id=len(self.calls),
            prompt_token_ids=prompt_token_ids,
            sampling=params,
            eos_token_ids=self.model.eos_token_ids,
        )
        state = RequestState(request, self.table, START)
        if follow is not None:
            follow(state.journal)
        turns = itertools.cycle(self.lumps)
        samples = [self._events(request, index, next(turns)[0]) for index in range(params.n)]
        while not state.finished:
            for _ in range(next(turns)[1]):
                for events in samples:
                    for event in itertools.islice(events, 1):
                        state.push(event, START)
            await asyncio.sleep(0)
            yield state.take()

    def _events(self, request: Request, index: int, lump: int) -> Iterator[SampleOutput]:
        """What a row makes of a sample's tokens, up to `lump` of them in each event."""
        params = request.sampling
        stops = _Stops(self.table, params) if params.stop else None
        begin = BeginRow(index, index, request.prompt_token_ids, params, request.eos_token_ids)
        row = RowState(begin, request.prompt_token_ids, stops=stops)
        scores = _scores(request.prompt_token_ids, params) if index == 0 else None
        cached = min(4, len(request.prompt_token_ids))
        event = SampleOutput(request.request_id, index, Gained([], prompt_logprobs=scores), cached)
        if params.max_tokens == 0:
            yield replace(event, gained=replace(event.gained, ending=Ending("length")))
            return
        tokens: list[int] = []
        for token in (*self.said[index % len(self.said)], *request.eos_token_ids):
            finish, reason = row.advance(token)
            tokens.append(token)
            if finish is None and row.position == params.max_tokens:
                finish = "length"
            if finish is not None or len(tokens) == lump:
                first = row.position - len(tokens)
                logprobs = [_logprobs(each, place, params) for place, each in enumerate(tokens, first)]
                told = None if params.logprobs is None else logprobs
                ending = None if finish is None else Ending(finish, reason)
                yield replace(event, gained=replace(event.gained, tokens=tokens, ending=ending, logprobs=told))
                event = SampleOutput(request.request_id, index, Gained([]))
                tokens = []
            if finish is not None:
                return


def _logprobs(token: int, place: int, params: SamplingParams) -> TokenLogprobs:
    """The token is the third most likely one in every other place, and the first in those between."""
    first, second, *_ = (other for other in (8, 9, 10) if other != token)
    tops = [token, first, second] if place % 2 else [first, second, token]
    values = [-0.25 - place / 64, -1.5, -3.0]
    top = params.logprobs or 0
    return TokenLogprobs(token, values[tops.index(token)], tops[:top], values[:top])


def _scores(prompt: Sequence[int], params: SamplingParams) -> list[TokenLogprobs] | None:
    top = params.prompt_logprobs
    if top is None:
        return None
    return [
        TokenLogprobs(token, -0.25 * place, [7, 8, token][:top], [-0.1, -0.2, -0.25 * place][:top], 3)
        for place, token in enumerate(prompt[1:], 1)
    ]
