"""The report as a whole, and what has changed between two."""

import msgspec
import pytest

from penstock.core.facts import StepTotals
from penstock.doctor.compare import compare
from penstock.doctor.diagnosis import Diagnosis, diagnose
from penstock.doctor.finding import LEVELS, Finding, worst
from penstock.doctor.observation import Observation
from penstock.observability.stats import Quantiles, SloFigures
from support.observations import SETTINGS, latencies, now, seen, steps, waits

URL = "http://127.0.0.1:8000"


def findings(observation: Observation) -> dict[str, Finding]:
    return {finding.subject: finding for finding in diagnose(URL, observation).findings}


def test_a_server_that_does_well_has_no_findings() -> None:
    found = diagnose(URL, seen())
    assert found.findings == () and worst(found.findings) == "ok"
    assert found.figures.requests == pytest.approx(4.0) and found.figures.output_tokens == pytest.approx(800.0)
    assert found.figures.goodput is None, "without service levels there is none"
    assert set(found.figures.latency) == {"ttft", "itl", "tpot", "e2e", "queue"}


@pytest.mark.parametrize(
    "subject, level, observation",
    [
        ("engine", "problem", seen(ready=False, why_not="it hangs")),
        ("engine", "problem", seen(restarts=1)),
        ("engine", "problem", seen(steps=StepTotals(), first=now(waiting=3), last=now(waiting=3))),
        ("simulation", "note", seen(settings=msgspec.structs.replace(SETTINGS, simulated="8x h100"))),
        ("failures", "warning", seen(requests={"completed": 30, "failed": 1})),
        ("waits for share", "note", seen(steps=waits("share", 3.0))),
        ("waits for background", "note", seen(steps=waits("background", 3.0))),
        ("clients that leave", "note", seen(requests={"completed": 30, "cancelled": 10})),
        ("requests that cannot be served", "note", seen(requests={"completed": 30, "rejected": 10})),
        ("history", "note", seen(prompt_tokens=300_000, hit_tokens=1900)),
    ],
)
def test_what_no_row_is_about_is_found_too(subject: str, level: str, observation: Observation) -> None:
    found = findings(observation)[subject]
    assert found.level == level and found.evidence and found.meaning.endswith(".")


def test_a_few_that_leave_are_no_finding() -> None:
    assert findings(seen(requests={"completed": 100, "cancelled": 2}, steps=waits("share", 0.1))) == {}


def test_levels_are_ordered() -> None:
    assert LEVELS == ("ok", "note", "warning", "problem")


def test_a_report_is_read_back() -> None:
    report = diagnose(URL, seen(steps=waits("rows", 5.0)))
    assert msgspec.json.decode(msgspec.json.encode(report), type=Diagnosis) == report


FAST = latencies(Quantiles(1000, 0.01, 0.005, 0.006, 0.007, 0.01), queue=Quantiles(40, 0.4, 0.001, 0.002, 0.003, 0.004))
LEVELS_SET = msgspec.structs.replace(SETTINGS, slo={"itl": 0.02})


def slo(goodput: float) -> SloFigures:
    return SloFigures(40, 30, 0.75, {}, 100, goodput, 10.0)


def test_the_bottleneck_has_moved() -> None:
    before = diagnose(URL, seen(steps=waits("rows", 8.0), settings=LEVELS_SET, slo=slo(1.0)))
    after = diagnose(URL, seen(steps=steps(operations=int(700e9)), settings=LEVELS_SET, slo=slo(3.0), latency=FAST))
    found = compare(before, after)
    assert found.moved and found.sentence == "The bottleneck has moved from rows to arithmetic."
    assert found.gone == (1,) and found.new == ()
    changes = {change.name: change for change in found.changes}
    assert changes["goodput"].better and changes["goodput"].ratio == pytest.approx(3.0)
    assert changes["itl p50"].better and changes["itl p99"].before == pytest.approx(0.015)
    assert changes["queue p50"].better, "no request waits for a row any more"
    assert changes["output tokens"].better is None, "it has not changed"
    assert found.notes == ()


def test_a_bottleneck_that_stays_goes_or_comes() -> None:
    rows, nothing = diagnose(URL, seen(steps=waits("rows", 8.0))), diagnose(URL, seen())
    assert "still rows" in compare(rows, rows).sentence and not compare(rows, rows).moved
    assert "is gone" in compare(rows, nothing).sentence
    assert "There is a bottleneck now: rows" in compare(nothing, rows).sentence
    assert compare(nothing, rows).new == (1,)
    assert not compare(nothing, nothing).moved


def test_reports_that_are_hard_to_compare_say_so() -> None:
    before = diagnose(URL, seen())
    heavier = diagnose(URL, seen(prompt_tokens=9000, model="another", settings=LEVELS_SET))
    notes = " ".join(compare(before, heavier).notes)
    assert "200 prompt tokens/s before, 900 now" in notes and "another" in notes and "service levels" in notes


def test_what_was_not_measured_is_not_compared() -> None:
    nothing = diagnose(URL, seen(latency=latencies(Quantiles(), Quantiles())))
    changes = {change.name: change for change in compare(nothing, diagnose(URL, seen())).changes}
    assert "goodput" not in changes
    assert changes["ttft p50"].before is None and changes["ttft p50"].ratio is None
    assert changes["ttft p50"].better is None
