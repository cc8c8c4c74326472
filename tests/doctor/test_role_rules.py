"""When prompts apart from outputs would help, by what was seen of a server."""

import msgspec
import pytest

from penstock.core.facts import StepTotals
from penstock.doctor.diagnosis import diagnose
from penstock.doctor.finding import Finding
from penstock.doctor.observation import Observation
from penstock.observability.stats import Quantiles
from support.observations import SETTINGS, latencies, prompts, seen, steps

LATE = latencies(Quantiles(1000, 0.03, 0.01, 0.09, 0.2, 0.3))
SERVICE = msgspec.structs.replace(SETTINGS, slo={"itl": 0.05})


def found(observation: Observation) -> Finding | None:
    findings = diagnose("http://127.0.0.1:8000", observation).findings
    return next((each for each in findings if each.subject == "prompts apart from outputs"), None)


def long_prompts(**changes: object) -> Observation:
    """Streams wait for prompts of about a thousand tokens."""
    usual = {"steps": prompts(), "latency": LATE, "settings": SERVICE, "prompt_tokens": 40_000, "hit_tokens": 0}
    return seen(**{**usual, "requests": {"completed": 40}, **changes})


def test_long_prompts_beside_streams_that_wait_too_long_would_be_better_apart() -> None:
    finding = found(long_prompts())
    assert finding is not None and finding.figure == "would help" and finding.level == "note"
    assert "One gap in a hundred is longer than 200 ms, and 50 are wanted" in finding.meaning
    assert "prompts of 1,000 tokens are computed beside running streams" in finding.meaning
    assert finding.advice is not None and "--role prefill" in finding.advice and "--prefill-replicas" in finding.advice


@pytest.mark.parametrize(
    "observation, why",
    [
        (long_prompts(prompt_tokens=4000), "prompts have 100 tokens to compute, and are sooner computed than moved"),
        (long_prompts(hit_tokens=36_000), "prompts have 100 tokens to compute"),
        (long_prompts(steps=steps()), "no prompt was computed beside streams"),
        (long_prompts(steps=prompts(chunk_seconds=0.3)), "are not what makes gaps long"),
    ],
)
def test_other_causes_are_said_instead(observation: Observation, why: str) -> None:
    finding = found(observation)
    assert finding is not None and finding.figure == "would not help" and why in finding.meaning


@pytest.mark.parametrize(
    "observation",
    [
        long_prompts(latency=latencies()),
        long_prompts(settings=msgspec.structs.replace(SERVICE, slo={"itl": 0.5})),
        long_prompts(settings=msgspec.structs.replace(SETTINGS, target_itl=None)),
        long_prompts(settings=msgspec.structs.replace(SERVICE, role="prefill")),
        long_prompts(latency=latencies(Quantiles(5, 0.03, 0.01, 0.09, 0.2, 0.3))),
        seen(steps=StepTotals()),
    ],
)
def test_where_nothing_waits_too_long_nothing_is_said(observation: Observation) -> None:
    assert found(observation) is None


def test_without_service_levels_it_is_what_steps_are_to_take() -> None:
    finding = found(long_prompts(settings=SETTINGS))
    assert finding is not None and "100 are wanted" in finding.meaning


def test_one_that_decodes_and_computes_many_prompts_lacks_others() -> None:
    finding = found(long_prompts(settings=msgspec.structs.replace(SERVICE, role="decode")))
    assert finding is not None and finding.advice is not None and "More replicas with --role prefill" in finding.advice
