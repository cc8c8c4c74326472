"""Each row of the cheat sheet applies where its problem is, and does not where it is not."""

import msgspec
import pytest

from penstock.doctor.observation import Observation
from penstock.doctor.sheet import SheetRow, judge_sheet
from penstock.observability.stats import Quantiles
from support.observations import SETTINGS, latencies, now, prompts, second, seen, steps, waits

WELL = seen()
SPIKES = Quantiles(1000, 0.02, 0.01, 0.02, 0.2, 0.3)
SLOW = Quantiles(1000, 0.2, 0.2, 0.21, 0.22, 0.3)
ALONE = steps(steps=100, rows=100, decodes=100, bytes=int(90e9), operations=int(5e9))
NO_CACHE = msgspec.structs.replace(SETTINGS, prefix_caching=False)
ROUNDED = msgspec.structs.replace(SETTINGS, quantization="int4")


def row(number: int, observation: Observation) -> SheetRow:
    found = judge_sheet(observation)[number - 1]
    assert found.number == number
    return found


def test_the_sheet_has_eleven_rows_each_with_its_reason() -> None:
    sheet = judge_sheet(WELL)
    assert [each.number for each in sheet] == list(range(1, 12))
    assert all(each.why.endswith(".") and each.problem and each.technique and each.layer for each in sheet)
    assert all(each.evidence for each in sheet)


def test_nothing_applies_to_a_server_that_does_well() -> None:
    assert {each.number for each in judge_sheet(WELL) if each.verdict == "applies"} == set()


@pytest.mark.parametrize(
    "number, observation, advice",
    [
        (1, seen(steps=waits("rows", 9.0), last=now(waiting=50)), "--max-num-seqs from 16 to 32"),
        (1, seen(steps=waits("pace", 3.0)), "Raise --target-itl"),
        (2, seen(steps=prompts()), "--target-itl 0.02"),
        (2, seen(steps=waits("budget", 3.0)), "Raise --target-itl"),
        (3, seen(steps=prompts(), settings=NO_CACHE, queried_tokens=0, hit_tokens=0), "--no-enable-prefix-caching"),
        (4, seen(steps=waits("blocks", 4.0)), "--kv-cache-memory"),
        (4, seen(steps=steps(preemptions=3), recomputed_tokens=900), "--kv-cache-memory"),
        (4, seen(refused={"memory_pressure": 2}), "--kv-cache-memory"),
        (4, seen(refused={"memory_pressure": 2}), "--kv-cache-dtype int8"),
        (4, seen(steps=steps(preemptions=3)), "--swap-space"),
        (5, seen(latency=latencies(SPIKES), steps=steps(cpu_wait=3.0)), "--threads"),
        (5, seen(latency=latencies(SPIKES), steps=steps(preemptions=3)), "row 4"),
        (5, seen(latency=latencies(SPIKES), steps=prompts()), "row 2"),
        (5, seen(latency=latencies(SPIKES)), "priority"),
        (6, seen(latency=latencies(SLOW)), "--quantization int4"),
        (6, seen(steps=ALONE), "--speculative auto"),
        (6, seen(steps=ALONE), "a quarter"),
        (9, seen(api_cpu=0.97), "several servers"),
        (9, seen(steps=steps(schedule=3.0, sample=2.0, send=2.0, execute=3.0)), "several servers"),
        (11, seen(refused={"queue_full": 5}), "--max-queued-requests"),
        (11, seen(requests={"completed": 40, "timed_out": 2}), "--request-timeout"),
    ],
)
def test_a_row_applies_where_its_problem_is(number: int, observation: Observation, advice: str) -> None:
    found = row(number, observation)
    assert found.verdict == "applies", found.why
    assert found.advice is not None and advice in found.advice


def test_what_was_swapped_was_not_computed_again() -> None:
    swapped = seen(latency=latencies(SPIKES), steps=steps(preemptions=3))
    assert row(5, swapped).why.endswith("; 3 sequences were preempted.")
    again = msgspec.structs.replace(swapped, recomputed_tokens=900)
    assert row(5, again).why.endswith("; 3 sequences were preempted, and 900 tokens were computed again.")


@pytest.mark.parametrize(
    "number, observation, why",
    [
        (1, seen(steps=waits("rows", 9.0, operations=int(900e9))), "machine is used"),
        (1, seen(steps=waits("blocks", 9.0)), "No request waited for a row"),
        (1, seen(steps=waits("rows", 0.2)), "In 2% of the time requests waited for a row"),
        (2, seen(steps=prompts(chunk_seconds=0.3, chunk_tokens=2000)), "do not stand out"),
        (2, WELL, "No prompt"),
        (3, seen(steps=prompts(), hit_tokens=1500), "75%"),
        (3, seen(settings=NO_CACHE), "only"),
        (3, seen(steps=prompts()), "do not repeat"),
        (4, seen(last=now(used=900)), "90%"),
        (5, seen(latency=latencies(Quantiles(1000, 0.001, 0.001, 0.004, 0.009, 0.01))), "even"),
        (6, seen(steps=prompts(chunk_seconds=8.0), latency=latencies(SLOW)), "row 2"),
        (7, WELL, "it fits"),
        (8, WELL, "it fits"),
        (9, seen(api_cpu=0.97, steps=steps(operations=int(600e9))), "used"),
        (11, seen(requests={"completed": 40, "cancelled": 3}), "No request"),
    ],
)
def test_a_row_does_not_apply_where_its_problem_is_not(number: int, observation: Observation, why: str) -> None:
    found = row(number, observation)
    assert found.verdict == "does not apply" and why in found.why


def test_what_cannot_be_told_is_not_guessed() -> None:
    assert row(10, WELL).verdict == "cannot be told", "one server does not see others"
    assert row(5, seen(latency=latencies(Quantiles(3, 0.1, 0.1, 0.1, 0.1, 0.1)))).verdict == "cannot be told"
    over = steps(execute=0.02, schedule=0.0, sample=0.0, send=0.0, steps=3, rows=3, decodes=3, cpu_wait=0.02)
    spikes_of_before = row(5, seen(latency=latencies(SPIKES), steps=over))
    assert spikes_of_before.verdict == "cannot be told" and "too little" in spikes_of_before.why
    full = now()
    full = msgspec.structs.replace(full, kv=msgspec.structs.replace(full.kv, cached=900, free=0))
    few_hits = row(3, seen(steps=prompts(), hit_tokens=10, last=full))
    assert few_hits.verdict == "cannot be told" and "evicted" in few_hits.why
    assert row(7, seen(ready=False, why_not="it is starting")).verdict == "cannot be told"


def test_what_this_release_lacks_is_named() -> None:
    lacking = {each.number: each.lacking for each in judge_sheet(WELL) if each.lacking}
    assert set(lacking) == {9, 10}
    assert lacking[9] == "replicas behind a router" and lacking[10] == "router"
    small = row(9, seen(api_cpu=0.97))
    assert small.in_words == "applies; cannot be acted on by this release"
    assert row(9, WELL).in_words == "does not apply; could not be acted on by this release"
    assert row(1, WELL).in_words == "does not apply"


def test_weights_that_are_small_already_get_other_advice() -> None:
    found = row(6, seen(latency=latencies(SLOW), settings=ROUNDED))
    assert found.advice is not None and "--quantization" not in found.advice


def test_service_levels_say_what_slow_is() -> None:
    strict = msgspec.structs.replace(SETTINGS, slo={"itl": 0.005})
    assert row(6, seen(settings=strict)).verdict == "applies"
    assert row(6, WELL).verdict == "does not apply"


def test_a_queue_that_never_empties_needs_no_longer_queue() -> None:
    steady = tuple(second(float(at), waiting=20) for at in range(10))
    burst = (*(second(float(at)) for at in range(8)), second(8.0, waiting=90), second(9.0, waiting=60))
    refused = {"queue_full": 5}
    always, sometimes = (row(11, seen(refused=refused, timeline=timeline)) for timeline in (steady, burst))
    assert always.advice is not None and "Take on less" in always.advice
    assert sometimes.advice is not None and "Raise --max-queued-requests" in sometimes.advice


def test_a_server_without_load_has_no_problems() -> None:
    idle = seen(
        requests={}, steps=steps(**dict.fromkeys(("steps", "rows", "decodes", "bytes", "operations", "budget"), 0),
        schedule=0.0, execute=0.0, sample=0.0, send=0.0), latency=latencies(Quantiles(), Quantiles()), timeline=(),
        queried_tokens=0, hit_tokens=0, output_tokens=0, api_cpu=None,
    )  # fmt: skip
    assert all(each.verdict != "applies" for each in judge_sheet(idle))
