"""Seconds by cause, of accounts that were made up; and what holds for any account."""

from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.ceilings import Ceilings
from penstock.core.facts import TIERS, WAITS, Missing, PrefixFound, StepTotals, TierFound
from penstock.core.work import LayerWork, ModelWork
from penstock.engine.journal import Fetch, Journal, Mark
from penstock.observability.account import Account, Preparation, Stall
from penstock.observability.explain.causes import attribute
from penstock.observability.explain.explain import Figures, explain
from penstock.observability.explain.explanation import CauseCode
from penstock.observability.explain.phases import course_of
from penstock.observability.explain.timeline import PLACES, WAITING
from penstock.observability.explain.verdict import NAMES, SENTENCES, setting_of
from support.accounts_made import ARRIVED, chunk, make_account, make_journal, mark, totals, waited

NOTHING = Mark(ARRIVED + 10.0, StepTotals())


def seconds(account: Account, now: Mark = NOTHING, work: ModelWork | None = None) -> dict[str, float]:
    """By cause, but for the thousandths."""
    found = attribute(course_of(account, now), *([] if work is None else [work]))
    return {code: round(each, 3) for code, each in found.items() if each > 0.0005}


def test_before_the_engine() -> None:
    preparation = Preparation(waited=1.0, worked=3.0, computed=2.0)
    account = make_account([make_journal(7.0, mark(7.0), mark(7.0), mark(7.0))], received=ARRIVED + 2.0, ended=7.0)
    account.preparation = preparation
    account.begun = ARRIVED + 0.5
    expected = {
        "busy_server": 0.5,
        "slow_upload": 1.5,
        "tokenizer_busy": 1.0,
        "tokenisation": 2.0,
        "cpu_contention": 1.0,
        "other": 1.0,
    }
    assert seconds(account) == expected


def test_a_request_that_never_got_to_an_engine() -> None:
    account = make_account(received=None, taken_on=None, ended=3.0, outcome="cancelled")
    assert seconds(account) == {"slow_upload": 3.0}
    account = make_account(ended=0.0)
    assert seconds(account) == {}
    assert "no time" in explain(account, NOTHING, Figures()).verdict.sentence


@pytest.mark.parametrize(
    ("wait", "code"),
    [
        ("rows", "queue_rows"),
        ("pace", "queue_pace"),
        ("blocks", "queue_memory"),
        ("budget", "neighbour_prefill"),
        ("share", "queue_share"),
        ("place", "queue_place"),
        ("prefix", "queue_prefix"),
        ("scores", "queue_scores"),
        ("background", "queue_background"),
    ],
)
def test_the_queue_is_told_by_what_was_short(wait: str, code: str) -> None:
    did = waited(wait, 6.0)  # type: ignore[arg-type]
    journal = make_journal(0.0, mark(6.0, did), mark(6.0, did), mark(10.0, did))
    assert seconds(make_account([journal])) == {code: 6.0, "decode": 4.0}


def test_every_wait_and_every_cause_has_its_words() -> None:
    for wait in WAITS:
        did = waited(wait, 6.0)
        journal = make_journal(0.0, mark(6.0, did), mark(6.0, did), mark(6.0, did))
        told = explain(make_account([journal], ended=6.0), NOTHING, Figures())
        assert [phase.detail for phase in told.timeline if phase.name == "queue"] == [f"for {WAITING[wait]}"]
    for code in get_args(CauseCode):
        assert code in SENTENCES and (code in NAMES or code in ("decode", "other"))


def test_waits_in_turn_share_the_queue() -> None:
    # What was counted in the first of these steps began before the request came.
    did = totals(rows=6.0, blocks=3.0, steps=9, execute=9.0)
    journal = make_journal(0.0, mark(6.0, did), mark(6.0, did), mark(6.0, did))
    assert seconds(make_account([journal], ended=6.0)) == {"queue_rows": 4.0, "queue_memory": 2.0}


def test_a_request_that_comes_amidst_a_step_with_a_prompt_waits_for_it() -> None:
    did = totals(steps=2, execute=4.0, chunk_steps=1, chunk_seconds=3.0, chunk_tokens=500)
    journal = make_journal(0.0, mark(2.0, did), mark(2.0, did), mark(2.0, did))
    assert seconds(make_account([journal], ended=2.0)) == {"neighbour_prefill": 1.5, "other": 0.5}


def test_the_grammar_comes_before_the_queue() -> None:
    journal = make_journal(0.0, mark(5.0), mark(5.0), mark(5.0), grammar_seconds=4.0)
    assert seconds(make_account([journal], ended=5.0)) == {"grammar_compile": 4.0, "other": 1.0}


def test_a_replica_that_is_asked_for_blocks_is_a_cause() -> None:
    journal = make_journal(0.0, mark(5.0), mark(5.0), mark(5.0), find_seconds=4.0)
    assert seconds(make_account([journal], ended=5.0)) == {"kv_fetch": 4.0, "other": 1.0}


@pytest.mark.parametrize(
    ("missing", "found", "code"),
    [
        (None, 80, "long_prompt"),
        ("off", 0, "long_prompt"),
        ("unseen", 0, "cold_prefix"),
        ("other_tenant", 0, "cold_prefix"),
        ("unseen", 16, "long_prompt"),
        ("different", 16, "changed_prefix"),
        ("evicted", 16, "evicted_prefix"),
    ],
)
def test_what_would_have_spared_the_prompt(missing: Missing | None, found: int, code: str) -> None:
    did = totals(steps=2, execute=4.0, chunk_steps=2, chunk_seconds=4.0, chunk_tokens=100)
    journal = make_journal(0.0, mark(0.0), mark(4.0, did), mark(4.0, did), prefix=PrefixFound(96, found, missing))
    journal.chunks = [chunk(0.0, 2.0, 0, 50), chunk(2.0, 2.0, 50, 50)]
    journal.computed_tokens = 100
    assert seconds(make_account([journal], ended=4.0)) == {code: 4.0}


def test_others_prompts_in_the_same_steps_and_between_them() -> None:
    did = totals(steps=3, execute=6.0, chunk_steps=3, chunk_seconds=6.0, chunk_tokens=400)
    journal = make_journal(0.0, mark(0.0), mark(6.0, did), mark(6.0, did), prefix=PrefixFound(96, 0, "unseen"))
    # A quarter of each step is its own; between them is a step of somebody else.
    journal.chunks = [chunk(0.0, 2.0, 0, 50, (150, 0)), chunk(4.0, 2.0, 50, 50, (150, 0))]
    assert seconds(make_account([journal], ended=6.0)) == {"cold_prefix": 1.0, "neighbour_prefill": 5.0}


@pytest.mark.parametrize("code", get_args(CauseCode))
@pytest.mark.parametrize("missing", ["unseen", "off", "different"])
def test_a_sentence_names_the_setting_that_would_change_its_cause(code: CauseCode, missing: Missing) -> None:
    journal = make_journal(0.0, mark(0.0), mark(1.0), mark(9.0), output_tokens=9, prefix=PrefixFound(96, 0, missing))
    journal.preempted, journal.computed_tokens = [ARRIVED], 100
    course = course_of(make_account([journal]), NOTHING)
    setting = setting_of(code, course)
    assert setting is None or setting in SENTENCES[code](course)


def test_the_request_s_own_other_prompts_are_no_neighbours() -> None:
    # Two steps of 2 s, of which a half was somebody else's; the second prompt waits while the first is computed.
    begun = waited("budget", 2.0, chunk_steps=1, chunk_seconds=2.0, chunk_tokens=200)
    done = waited("budget", 2.0, execute=4.0, chunk_steps=2, chunk_seconds=4.0, chunk_tokens=400)
    first = make_journal(0.0, mark(0.0), None, mark(2.0, begun), computed_tokens=100)
    last = make_journal(0.0, mark(2.0, begun), None, mark(4.0, done), computed_tokens=100)
    first.chunks, last.chunks = [chunk(0.0, 2.0, 0, 100, (100, 0))], [chunk(2.0, 2.0, 0, 100, (100, 0))]
    last.prefix = PrefixFound(96, 0, "unseen")
    account = make_account([first, last], ended=4.0)
    assert seconds(account) == {"cold_prefix": 2.0, "neighbour_prefill": 2.0}
    assert "200 tokens of its 2 prompts" in SENTENCES["cold_prefix"](course_of(account, NOTHING))
    assert seconds(make_account([last], ended=4.0)) == {"cold_prefix": 1.0, "neighbour_prefill": 3.0}


def test_a_sample_that_found_no_place_computes_the_prompt_for_itself() -> None:
    did = totals(steps=10, execute=5.0, chunk_steps=1, chunk_seconds=1.0, chunk_tokens=100, decodes=20)
    journal = make_journal(0.0, mark(0.0), mark(0.0), mark(5.0, did), output_tokens=20, prefix=PrefixFound(96, 96))
    journal.chunks = [chunk(2.0, 1.0, 0, 100)]
    assert seconds(make_account([journal], ended=5.0, samples=2)) == {"long_prompt": 1.0, "decode": 4.0}


def test_decoding_behind_others_prompts() -> None:
    # Ten steps of 0.1 s, and four of 1 s that would have taken as long.
    did = totals(steps=14, execute=5.0, chunk_steps=4, chunk_seconds=4.0, chunk_tokens=2000, decodes=14)
    journal = make_journal(0.0, mark(0.0), mark(0.0), mark(5.0, did), output_tokens=15)
    assert seconds(make_account([journal], ended=5.0)) == {"neighbour_prefill": 3.6, "decode": 1.4}


def test_a_preemption_takes_the_wait_and_what_is_computed_again() -> None:
    did = totals(steps=20, execute=10.0, chunk_steps=1, chunk_seconds=1.0, chunk_tokens=100, decodes=19)
    journal = make_journal(0.0, mark(0.0), mark(0.0), mark(10.0, did), output_tokens=20)
    journal.preempted, journal.returned = [ARRIVED + 2.0], [ARRIVED + 7.0]
    journal.chunks = [chunk(7.0, 1.0, 0, 105)]
    assert seconds(make_account([journal])) == {"preemption": 6.0, "decode": 4.0}
    # Before it is back, all since then is lost.
    running = make_journal(0.0, mark(0.0), mark(0.0), output_tokens=5, preempted=[ARRIVED + 2.0])
    assert seconds(make_account([running], ended=None)) == {"preemption": 8.0, "decode": 2.0}


def test_an_engine_that_ends_takes_all_that_it_had_done() -> None:
    journal = make_journal(0.0, mark(0.0), mark(8.0), mark(8.0), prefix=PrefixFound(96, 0, "unseen"))
    journal.chunks = [chunk(0.0, 2.0, 0, 100), chunk(6.0, 2.0, 0, 100)]
    journal.interrupted = [ARRIVED + 3.0]
    found = seconds(make_account([journal], ended=8.0))
    assert found["engine_restart"] == 6.0 and sum(found.values()) == 8.0


def test_what_waits_for_a_processor_is_taken_of_the_request_s_own_work() -> None:
    did = totals(steps=10, execute=10.0, cpu_wait=8.0, decodes=10)
    journal = make_journal(0.0, mark(0.0), mark(0.0), mark(10.0, did), output_tokens=11)
    assert seconds(make_account([journal])) == {"cpu_contention": 8.0, "decode": 2.0}
    # What steps before the request's waited for is told within its own.
    late = make_journal(0.0, mark(0.0), mark(0.0), mark(10.0, totals(steps=10, execute=10.0, cpu_wait=30.0)))
    assert seconds(make_account([late])) == pytest.approx({"cpu_contention": 9.9, "decode": 0.1})
    queued = make_journal(0.0, mark(10.0, waited("rows", 10.0, cpu_wait=8.0)))
    assert seconds(make_account([queued])) == {"queue_rows": 10.0}


def test_a_long_context_is_what_is_read_for_it() -> None:
    work = ModelWork(1000, attention=(LayerWork(2, 10, 4), LayerWork(1, 10, 4, window=8)))
    # 100 tokens of the prompt and 5 of the output on average, and 8 in the window.
    read = 10 * (2 * 10 * 105 + 10 * 8)
    did = totals(steps=10, execute=8.0, sample=2.0, decodes=10, bytes=2 * read)
    journal = make_journal(0.0, mark(0.0), mark(0.0), mark(10.0, did), output_tokens=10)
    assert seconds(make_account([journal]), work=work) == {"long_context": 4.0, "decode": 6.0}


def test_a_reader_costs_what_comes_behind_the_engine_s_end() -> None:
    journal = make_journal(0.0, mark(0.0), mark(0.0), mark(4.0), output_tokens=10)
    account = make_account([journal], stalls=[Stall(ARRIVED + 1.0, 1.0), Stall(ARRIVED + 3.0, 6.0)])
    assert seconds(account) == {"decode": 4.0, "slow_reader": 5.0, "other": 1.0}


def test_the_prompt_that_is_finished_last_is_told_of() -> None:
    early = make_journal(0.0, mark(0.0), mark(0.0), mark(1.0), output_tokens=5)
    did = waited("rows", 9.0)
    late = make_journal(0.0, mark(9.0, did), mark(9.0, did), mark(10.0, did), output_tokens=5)
    told = explain(make_account([early, late]), NOTHING, Figures())
    assert (told.prompts, told.prompt, told.verdict.cause) == (2, 1, "queue_rows")
    unfinished = make_journal(0.0, mark(2.0))
    assert explain(make_account([unfinished, late]), NOTHING, Figures()).prompt == 0


moments = st.floats(-1.0, 12.0)


@st.composite
def sums(draw: st.DrawFn) -> StepTotals:
    """What engines can have done, plausible or not."""
    steps, chunk_steps = draw(st.integers(0, 50)), draw(st.integers(0, 50))
    figures = [draw(st.floats(0, 20)) for _ in range(6)]
    held = tuple(draw(st.floats(0, 20)) for _ in WAITS)
    return StepTotals(
        steps=steps,
        execute=figures[0],
        sample=figures[1],
        cpu_wait=figures[2],
        rows=draw(st.integers(0, 500)),
        decodes=draw(st.integers(0, 500)),
        chunk_tokens=draw(st.integers(0, 5000)),
        bytes=draw(st.integers(0, 10**9)),
        chunk_steps=min(steps, chunk_steps),
        chunk_seconds=figures[3],
        held=held,
    )


@st.composite
def journals(draw: st.DrawFn) -> Journal:
    """Landmarks in any order, as clocks of several processes may have them; some are missing."""
    marks = [mark(draw(moments), draw(sums())) if draw(st.booleans()) else None for _ in range(3)]
    prefix = PrefixFound(96, draw(st.integers(0, 96)), draw(st.sampled_from([None, "unseen", "evicted", "different"])))
    journal = make_journal(
        draw(moments), *marks, prefix=prefix, grammar_seconds=draw(st.floats(0, 5)), find_seconds=draw(st.floats(0, 5))
    )
    journal.output_tokens = draw(st.integers(0, 500))
    for _ in range(draw(st.integers(0, 4))):
        beside = draw(st.integers(0, 500)), draw(st.integers(0, 50))
        start, count = draw(st.integers(0, 400)), draw(st.integers(1, 400))
        journal.chunks.append(chunk(draw(moments), draw(st.floats(0, 5)), start, count, beside))
    journal.computed_tokens = draw(st.integers(0, 2000))
    journal.chunks_left_out = draw(st.integers(0, 3))
    for landmarks in (journal.preempted, journal.returned, journal.interrupted):
        landmarks.extend(ARRIVED + draw(moments) for _ in range(draw(st.integers(0, 3))))
    return journal


@st.composite
def accounts(draw: st.DrawFn) -> Account:
    """Anything that a server could write down."""
    received = draw(st.one_of(st.none(), moments.map(lambda moment: ARRIVED + moment)))
    ended = draw(st.one_of(st.none(), st.floats(0, 12)))
    account = make_account(draw(st.lists(journals(), max_size=3)), ended, received=received)
    account.preparation = Preparation(*(draw(st.floats(0, 5)) for _ in range(3)))
    account.stalls = [Stall(ARRIVED + draw(moments), draw(st.floats(0, 5))) for _ in range(draw(st.integers(0, 3)))]
    account.sending = draw(st.one_of(st.none(), st.just(ARRIVED + 3.0)))
    return account


@given(accounts(), st.floats(0, 12), sums())
def test_phases_follow_one_another_and_causes_are_all_of_the_time(account: Account, at: float, did: StepTotals) -> None:
    told = explain(account, mark(at, did), Figures(ModelWork(attention=(LayerWork(2, 100, 4),)), Ceilings(1.0, {})))
    end = at if account.ended is None else account.ended - ARRIVED
    assert told.seconds == pytest.approx(end)
    reached = 0.0
    for phase in told.timeline:
        assert phase.start == pytest.approx(reached, abs=1e-6) and phase.seconds >= 0
        reached = phase.start + phase.seconds
        for part in phase.parts:
            assert part.seconds >= 0 and part.start >= -1e-6
            assert part.start + part.seconds <= told.seconds + 1e-6
    assert reached == pytest.approx(told.seconds, abs=1e-6)
    assert all(cause.seconds > 0 for cause in told.causes)
    assert sum(cause.seconds for cause in told.causes) == pytest.approx(told.seconds, abs=1e-6)
    assert [cause.seconds for cause in told.causes] == sorted((each.seconds for each in told.causes), reverse=True)
    assert told.verdict.sentence.endswith(".")
    if told.causes:
        assert told.verdict.cause == told.causes[0].code


FROM_DISK = PrefixFound(96, 64, "unseen", tiers=(TierFound("pool", 16), TierFound("disk", 48, 2**20)))


def test_waiting_for_a_tier_is_a_phase_and_a_cause_of_its_own() -> None:
    # Meanwhile, others' prompts are computed: that delays nothing.
    begun = waited("rows", 1.0)
    did = totals(rows=1.0, steps=4, execute=4.0, chunk_steps=2, chunk_seconds=3.0, chunk_tokens=500)
    done = totals(rows=1.0, steps=5, execute=6.0, chunk_steps=3, chunk_seconds=5.0, chunk_tokens=536)
    journal = make_journal(0.0, mark(1.0, begun), mark(6.0, done), mark(6.0, done), prefix=FROM_DISK)
    journal.fetches = [Fetch("disk", ARRIVED + 1.0, 48, mark(4.0, did), 48, 2**20)]
    journal.chunks, journal.computed_tokens = [chunk(4.0, 2.0, 64, 36)], 36
    account = make_account([journal], ended=6.0)
    assert seconds(account) == {"queue_rows": 1.0, "kv_fetch": 3.0, "long_prompt": 2.0}
    told = explain(account, NOTHING, Figures())
    assert [(phase.name, phase.seconds) for phase in told.timeline if phase.seconds] == [
        ("queue", 1.0),
        ("fetch", 3.0),
        ("prefill", 2.0),
    ]
    assert told.timeline[3].detail == "48 tokens from the disk, 1.0 MiB"
    assert told.queue_seconds == 1.0 and told.verdict.cause == "kv_fetch"
    assert "48 tokens of its prefix from the disk" in told.verdict.sentence
    assert told.prefix is not None
    assert [(each.tier, each.tokens, each.seconds) for each in told.prefix.tiers] == [
        ("pool", 16, None),
        ("disk", 48, 3.0),
    ]


def test_while_it_is_read_it_is_waited_for() -> None:
    journal = make_journal(0.0, mark(1.0), prefix=FROM_DISK)
    journal.fetches = [Fetch("disk", ARRIVED + 1.0, 48)]
    told = explain(make_account([journal], ended=None), mark(5.0), Figures())
    assert (told.state, told.waits_for) == ("fetching", "its prefix, which is read from the disk")
    assert {cause.code: cause.seconds for cause in told.causes}["kv_fetch"] == 4.0


def test_after_a_preemption_a_tier_is_waited_for_within_the_phase() -> None:
    did = totals(steps=4, execute=4.0)
    journal = make_journal(0.0, mark(0.0), mark(1.0), mark(9.0, did), output_tokens=5)
    journal.preempted, journal.returned = [ARRIVED + 2.0], [ARRIVED + 3.0]
    journal.fetches = [Fetch("disk", ARRIVED + 3.0, 48, mark(5.0), 48)]
    account = make_account([journal], ended=9.0)
    found = seconds(account)
    assert (found["preemption"], found["kv_fetch"]) == (1.0, 2.0)
    parts = [part for phase in explain(account, NOTHING, Figures()).timeline for part in phase.parts]
    assert [(part.name, part.start, part.seconds) for part in parts] == [("preempted", 2.0, 1.0), ("fetch", 3.0, 2.0)]


def test_each_tier_has_a_name_for_people() -> None:
    assert tuple(PLACES) == TIERS and len(set(PLACES.values())) == len(TIERS)
