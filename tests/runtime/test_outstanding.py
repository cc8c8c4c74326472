"""Steps that are launched before the tokens of the one before are known: what comes out is what comes out without."""

import contextlib
import math
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from torch import Tensor

from penstock import LLM, BeamSearch, Grammar, SamplingParams
from penstock.cache.shelves import Shelves
from penstock.core.request import Request
from penstock.runtime.device_slots import DeviceSlots
from penstock.runtime.executor import ModelExecutor
from penstock.runtime.storage import KVStorage
from support.checkpoints import make
from support.endings import finish_of
from support.lagging import LaggingDevice
from support.later import copies_later
from support.waiting import PATIENCE

SIZES: dict[str, Any] = {"threads": 1, "max_model_len": 128, "max_num_seqs": 6, "speculative": "off"}
# Each needs the token before, or the logits, or no token at all.
NEEDS_HOST: dict[str, dict[str, Any]] = {
    "penalties": {"presence_penalty": 1.0, "repetition_penalty": 1.2},
    "bias": {"logit_bias": {5: 3.0}},
    "allowed": {"allowed_token_ids": tuple(range(3, 200)), "bad_words_ids": ((5,), (6, 7))},
    "least": {"min_tokens": 4, "stop_token_ids": tuple(range(3, 200))},
    "listed": {"logprobs": 2},
    "scored": {"prompt_logprobs": 1},
    "grammar": {"grammar": Grammar.regex("[a-z ]+")},
}

Asked = tuple[list[int], SamplingParams]
Outcome = dict[tuple[int, int], list[Any]]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make("llama", tmp_path_factory.mktemp("llama"))


def engine(checkpoint: Path, device: LaggingDevice | None = None, **options: Any) -> LLM:
    """An engine that computes here, or on a device."""
    return LLM(str(checkpoint), build=None if device is None else device.build, **(SIZES | options))


def requests_of(llm: LLM, asked: Sequence[Asked]) -> list[Request]:
    return [llm._intake.request(prompt, params) for prompt, params in asked]


def outcome(llm: LLM, asked: Sequence[Asked], aborts: dict[int, int] | None = None, later: int = 0) -> Outcome:
    """Tokens, end and prompt's scores of each sample.

    `aborts` says after how many tokens of its first sample a request is left. The last `later` requests come once a
    step has been computed.
    """
    core, requests = llm._core, requests_of(llm, asked)
    place = {request.request_id: index for index, request in enumerate(requests)}
    found: Outcome = {}
    for request in requests:
        core.prepare(request)
    for request in requests[: len(requests) - later]:
        core.add(request)
    waiting = requests[len(requests) - later :]
    while core.has_work:
        for event in core.step():
            state = found.setdefault((place[event.request_id], event.sample_index), [[], None, None, []])
            assert state[1] is None, "nothing comes after the end"
            state[0] += event.gained.tokens
            ending = event.gained.ending
            state[1:3] = (None, None) if ending is None else (ending.reason, ending.stop_reason)
            state[3] += event.gained.prompt_logprobs or ()
        for index, tokens in (aborts or {}).items():
            if len(found.get((index, 0), [[]])[0]) >= tokens:
                core.abort(requests[index].request_id)
        while waiting:
            core.add(waiting.pop())
        core.scheduler.check()
    assert not core.is_computing and core.snapshot().blocks_used == 0
    return found


def text_of(llm: LLM, token: int) -> str:
    assert llm.tokenizer is not None
    return llm.tokenizer.table.piece(token).decode(errors="ignore")


def some_requests(llm: LLM, chance: random.Random, kinds: Sequence[str]) -> tuple[list[Asked], dict[int, int]]:
    """Requests of several kinds, which share prefixes; some end by a token or a text that would come, some are left."""
    prefix = [chance.randrange(3, 300) for _ in range(40)]
    asked: list[Asked] = []
    for _ in range(9):
        own = [chance.randrange(3, 300) for _ in range(chance.randint(1, 12))]
        kind = chance.choice(kinds)
        params = SamplingParams(
            max_tokens=1 if kind == "once" else chance.choice([4, 20, 45]),
            seed=chance.randrange(99),
            temperature=chance.choice([0.0, 0.7, 1.5]),
            n=chance.choice([1, 1, 1, 3]),
            **NEEDS_HOST.get(kind, {}),
        )
        asked.append((prefix[: chance.choice([0, 17, 32, 40])] + own, params))
    plain = outcome(llm, asked)
    for index, (prompt, params) in enumerate(asked):
        tokens = plain[index, 0][0]
        coming = tokens[len(tokens) // 2] if tokens else 0
        way = chance.choice(["token", "text", None])
        if way == "token" and tokens:
            params = msgspec.structs.replace(params, stop_token_ids=(*params.stop_token_ids, coming))
        if way == "text" and text_of(llm, coming).strip():
            params = msgspec.structs.replace(params, stop=(text_of(llm, coming),))
        asked[index] = prompt, params
    return asked, {index: chance.randint(1, 6) for index in range(len(asked)) if chance.random() < 0.2}


def agree(mine: Outcome, right: Outcome, aborts: dict[int, int]) -> None:
    assert mine.keys() == right.keys()
    for (index, sample), theirs in right.items():
        found = mine[index, sample]
        if index in aborts:
            # Which tokens came before it was left is chance.
            length = min(len(found[0]), len(theirs[0]))
            assert found[0][:length] == theirs[0][:length]
        else:
            assert found == theirs


@pytest.mark.parametrize("blocks", [None, 11])
def test_tokens_are_those_of_one_step_at_a_time(checkpoint: Path, blocks: int | None) -> None:
    """Greedy and sampled, with stops of all kinds, forks, aborts, shared prefixes, and a pool that is too small."""
    options: dict[str, Any] = {"max_num_batched_tokens": 48}
    if blocks is not None:
        spec = engine(checkpoint)._prepared.config.cache.spec
        options |= {"kv_cache_memory": blocks * spec.block_bytes}
    device = LaggingDevice()
    plain, ahead = engine(checkpoint, **options), engine(checkpoint, device, **options)
    for seed in range(12):
        chance = random.Random(seed)
        kinds = ["plain"] * 8 + ["once"] + ([] if seed % 3 else list(NEEDS_HOST))
        asked, aborts = some_requests(plain, chance, kinds)
        agree(outcome(ahead, asked, aborts), outcome(plain, asked, aborts), aborts)
    assert device.most_ahead == 2
    assert plain._core.failure is ahead._core.failure is None
    snapshot = ahead._core.snapshot()
    assert snapshot.prefix_hit_tokens > 0
    assert (snapshot.preemptions > 0) == (blocks is not None)


def test_a_step_is_launched_before_the_one_before_is_read(checkpoint: Path) -> None:
    device = LaggingDevice()
    llm = engine(checkpoint, device)
    llm.generate([[7, 8, 9]], SamplingParams(max_tokens=4, temperature=0.0, ignore_eos=True))
    launches, reads = ([device.events.index((what, number)) for number in range(4)] for what in ("launch", "read"))
    assert all(launched < read for launched, read in zip(launches[1:], reads, strict=False))
    assert launches == sorted(launches) and reads == sorted(reads)
    assert device.launched == 4, "nothing is launched beyond what may come"


@pytest.mark.parametrize("kind", NEEDS_HOST)
def test_what_the_host_has_to_know_is_waited_for(checkpoint: Path, kind: str) -> None:
    """A request that needs it joins one that does not, whose step is under way then."""
    device = LaggingDevice()
    plain, ahead = engine(checkpoint), engine(checkpoint, device)
    special = SamplingParams(max_tokens=6, temperature=0.7, seed=3, **NEEDS_HOST[kind])
    asked = [
        ([7, 8, 9], SamplingParams(max_tokens=12, temperature=0.0, ignore_eos=True)),
        (list(range(5, 25)), special),
    ]
    found = outcome(ahead, asked, later=1)
    assert found == outcome(plain, asked)
    assert len(found[1, 0][3]) == (19 if kind == "scored" else 0)
    assert device.launched and device.most_ahead == 2
    before = device.launched
    outcome(ahead, [([9, 8, 7], special)])
    # A prompt is scored in the step that gives its first token; what follows needs nothing.
    assert (device.launched > before) == (kind in ("scored", "least"))


def test_beams_beside_what_is_launched_find_what_they_find_alone(checkpoint: Path) -> None:
    """With room for all, and with so little that they are preempted."""
    searched = [
        SamplingParams(n=3, beam=BeamSearch(width=3, early_stopping=each), max_tokens=20, temperature=0.0)
        for each in (True, False)
    ]
    asked: list[Asked] = []
    for index in range(6):
        prompt = [3 + (7 * index + place) % 300 for place in range(20 + 9 * index)]
        asked.append((prompt, searched[index // 2 % 2] if index % 2 else SamplingParams(max_tokens=40, seed=index)))
    alone = engine(checkpoint)
    plain, size = outcome(alone, asked), alone._prepared.config.cache.spec.block_bytes
    for blocks in (None, 21):
        device = LaggingDevice()
        llm = engine(checkpoint, device, max_num_seqs=12, **({"kv_cache_memory": blocks * size} if blocks else {}))
        assert outcome(llm, asked, later=2) == plain
        assert device.events, "others are launched"
        assert (llm.load.preemptions > 0) == (blocks is not None)


def test_vectors_are_waited_for(checkpoint: Path) -> None:
    device = LaggingDevice()
    plain, ahead = engine(checkpoint), engine(checkpoint, device)
    right = plain.embed([[5, 6, 7] * 9])
    core, params = ahead._core, SamplingParams(max_tokens=12, temperature=0.0, ignore_eos=True)
    (request,) = requests_of(ahead, [([7, 8, 9], params)])
    core.add(request)
    events = core.step()
    assert core.is_computing and device.most_ahead == 2
    core.add(ahead._intake.embedding([5, 6, 7] * 9, "last"))
    while core.has_work:
        events += core.step()
    (vector,) = [event.gained.embedding for event in events if event.gained.embedding is not None]
    assert torch.frombuffer(bytearray(vector), dtype=torch.float32).tolist() == right[0]
    tokens = [token for event in events for token in event.gained.tokens]
    assert tokens == plain.generate([[7, 8, 9]], params)[0].token_ids


def test_no_state_advances_beyond_the_end(checkpoint: Path) -> None:
    device = LaggingDevice()
    plain, ahead = engine(checkpoint), engine(checkpoint, device)
    prompt, params = [7, 8, 9], SamplingParams(max_tokens=12, temperature=0.0, ignore_eos=True)
    tokens = plain.generate([prompt], params)[0].token_ids
    core = ahead._core
    stop = next(place for place in range(3, 12) if tokens[place] not in tokens[:place])
    (request,) = requests_of(ahead, [(prompt, msgspec.structs.replace(params, stop_token_ids=(tokens[stop],)))])
    core.add(request)
    core.step()
    executor = core._executor
    assert isinstance(executor, ModelExecutor)
    (row,) = executor.table.rows.values()
    while core.has_work:
        core.step()
    assert row.state.position == stop + 1 and row.tokens == prompt + tokens[: stop + 1]
    assert device.launched == stop + 2, "one step was launched before the end was known"


def test_a_row_that_has_ended_is_left_out_of_a_step_that_was_postponed(checkpoint: Path) -> None:
    device = LaggingDevice()
    plain, ahead = engine(checkpoint), engine(checkpoint, device)
    params = SamplingParams(max_tokens=12, temperature=0.0, ignore_eos=True)
    special = ([5] * 20, SamplingParams(max_tokens=6, temperature=0.0, **NEEDS_HOST["penalties"]))
    tokens = plain.generate([[7, 8, 9]], params)[0].token_ids
    right = outcome(plain, [special])[0, 0]
    assert tokens[2] not in tokens[:2]
    core = ahead._core
    stopped, other = requests_of(
        ahead, [([7, 8, 9], msgspec.structs.replace(params, stop_token_ids=(tokens[2],))), special]
    )
    core.add(stopped)
    core.step()
    core.step()
    executor = core._executor
    assert isinstance(executor, ModelExecutor)
    (row,) = executor.table.rows.values()
    core.add(other)
    # The third token ends the first request, in whose next step the second one comes in.
    (event,) = core.step()
    assert (event.gained.tokens, finish_of(event.gained)) == ([tokens[2]], "stop") and len(
        core._begun[0].plan.rows
    ) == 2
    events = []
    while core.has_work:
        events += core.step()
    assert row.state.position == 3
    assert {each.request_id for each in events} == {other.request_id}
    assert [token for each in events for token in each.gained.tokens] == right[0]


def test_what_is_not_finite_ends_its_row_alone(checkpoint: Path) -> None:
    device = LaggingDevice()
    plain, ahead = engine(checkpoint), engine(checkpoint, device)
    asked = [([7 + index, 8, 9], SamplingParams(max_tokens=8, temperature=0.0, ignore_eos=True)) for index in range(3)]
    right = outcome(plain, asked)

    def spoil(number: int, logits: Tensor) -> None:
        if number == 2:
            logits[1] = torch.nan

    device.spoil = spoil
    found = outcome(ahead, asked)
    ends = sorted((state[1], len(state[0])) for state in found.values())
    assert ends == [("error", 2), ("length", 8), ("length", 8)]
    for key, state in found.items():
        assert state[0] == right[key][0][: len(state[0])]


def test_a_step_that_fails_ends_its_rows_and_what_was_launched_behind_it(checkpoint: Path) -> None:
    """Who came in with the step behind it gets all of his tokens, and so do those who come later."""
    device = LaggingDevice()
    plain, ahead = engine(checkpoint), engine(checkpoint, device)
    params = SamplingParams(max_tokens=8, temperature=0.0, ignore_eos=True)
    asked = [([7, 8, 9] * 6, params), ([11, 12], params), ([13] * 9, params)]
    right = outcome(plain, asked)
    # The last is in the step behind it.
    device.failures[1] = RuntimeError("the device is ill")
    found = outcome(ahead, asked, later=1)
    assert [found[index, 0][1] for index in range(3)] == ["error", "error", "length"]
    assert [len(found[index, 0][0]) for index in range(3)] == [1, 1, 8]
    assert found[2, 0] == right[2, 0]
    assert outcome(ahead, asked) == right


def test_nothing_forks_from_a_prompt_that_was_not_computed(checkpoint: Path) -> None:
    device = LaggingDevice()
    llm = engine(checkpoint, device, max_num_batched_tokens=16)
    params = SamplingParams(max_tokens=8, temperature=1.0, seed=1, n=3)
    device.failures[0] = RuntimeError("the device is ill")
    found = outcome(llm, [([7, 8, 9] * 9, params)])
    assert device.most_ahead == 2
    assert {key: (state[0], state[1]) for key, state in found.items()} == {(0, n): ([], "error") for n in range(3)}
    assert outcome(llm, [([7, 8, 9] * 9, params)]) == outcome(engine(checkpoint), [([7, 8, 9] * 9, params)])


@pytest.mark.parametrize("number", [0, 1, 3])
def test_an_interrupt_leaves_an_engine_that_works(checkpoint: Path, number: int) -> None:
    device = LaggingDevice()
    llm = engine(checkpoint, device)
    params = SamplingParams(max_tokens=8, temperature=0.0, ignore_eos=True)
    right = [each.token_ids for each in engine(checkpoint).generate([[7, 8, 9], [11, 12]], params)]
    device.failures[number] = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        llm.generate([[7, 8, 9], [11, 12]], params)
    assert not llm._core.has_work
    for _ in range(2):
        assert [each.token_ids for each in llm.generate([[7, 8, 9], [11, 12]], params)] == right


@pytest.fixture
def lagging_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slots leave pools, and come back, as with a GPU, whose copies take their time.

    What is on a shelf is always read, and waited for: how fast that is says nothing here.
    """

    def slots(pool: KVStorage) -> DeviceSlots:
        block = pool.spec.block_bytes
        return DeviceSlots(pool._memory, 1, 40 * block, 3 * block, copies_later(random.Random(0)))

    monkeypatch.setattr(KVStorage, "slots", slots)
    monkeypatch.setattr(Shelves, "pays", lambda *_: True)
    monkeypatch.setattr(Shelves, "patience", lambda *_: math.inf)


def shelve(llm: LLM) -> None:
    """Until all that was published is on the shelf by its books, too: a step's result tells them what was written."""
    assert llm.flush(PATIENCE)
    llm.generate([[5]], SamplingParams(max_tokens=1, ignore_eos=True))


def small_pool(checkpoint: Path) -> dict[str, Any]:
    """Options of an engine that cannot hold what it is asked for at a time."""
    spec = engine(checkpoint)._prepared.config.cache.spec
    return {"max_num_batched_tokens": 48, "kv_cache_memory": 11 * spec.block_bytes}


def test_tokens_are_the_same_with_a_disk(checkpoint: Path, tmp_path: Path, lagging_copies: None) -> None:
    """What the pool has lost comes from there while steps are under way, and so it does behind a new start."""
    options = small_pool(checkpoint)
    plain, read = engine(checkpoint, **options), []
    for folder in range(2):
        device = LaggingDevice()
        ahead = engine(checkpoint, device, kv_disk=str(tmp_path / "kv"), **options)
        for seed in (0, 1, 2, 3, 0, 1):
            asked, aborts = some_requests(plain, random.Random(seed), ["plain"] * 8 + list(NEEDS_HOST)[:folder])
            agree(outcome(ahead, asked, aborts), outcome(plain, asked, aborts), aborts)
            shelve(ahead)
        assert device.most_ahead == 2 and ahead._core.failure is None
        totals = ahead.load.shelf("disk")
        assert totals.lost == 0
        read.append(totals.read)
    # The first has its own blocks back, and the second all that the first has left.
    assert 0 < read[0] < read[1]


@pytest.mark.parametrize("failure", [RuntimeError, KeyboardInterrupt])
def test_a_plan_that_fails_leaves_nothing_of_its_transfers(
    checkpoint: Path, tmp_path: Path, lagging_copies: None, failure: type[BaseException]
) -> None:
    """They are not reported any more, whether its result was asked for or not, and its blocks are nobody's."""
    options, params = small_pool(checkpoint), SamplingParams(max_tokens=8, temperature=0.0, ignore_eos=True)
    prompts = [[index] * 70 for index in (7, 8, 9)]
    right = [each.token_ids for each in engine(checkpoint).generate(prompts, params)]
    device = LaggingDevice()
    llm = engine(checkpoint, device, kv_disk=str(tmp_path / "kv"), **options)

    def one_by_one() -> None:
        for prompt, tokens in zip(prompts, right, strict=True):
            assert llm.generate([prompt], params)[0].token_ids == tokens
        shelve(llm)

    # Of 12 slots the pool has room for 11 at most: the first prompt has lost some, and reads them.
    one_by_one()
    one_by_one()
    assert llm.load.shelf("disk").read > 0
    for steps in range(0, 12, 3):
        device.failures[device.launched + steps] = failure("the device is ill")
        with contextlib.suppress(KeyboardInterrupt):
            llm.generate(prompts, params)
        device.failures.clear()
        assert [each.token_ids for each in llm.generate(prompts, params)] == right
        one_by_one()
        assert llm._core.check() is None and llm._core.snapshot().blocks_used == 0
