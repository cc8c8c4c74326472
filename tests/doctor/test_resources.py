"""Which resource saturates, and which of several is the bottleneck."""

import msgspec
import pytest

from penstock.core.facts import StepTotals
from penstock.doctor.observation import Observation
from penstock.doctor.resources import Name, Resource, bottleneck, resources
from penstock.observability.stats import Now
from support.observations import SETTINGS, now, seen, steps, waits

IDLE = {"execute": 0.5, "schedule": 0.0, "sample": 0.0, "send": 0.0}


def lingering(count: int) -> Now:
    """Beside the eight that run, requests that only their clients have to do with."""
    return msgspec.structs.replace(now(), in_flight=8 + count)


def named(name: Name, observation: Observation) -> Resource:
    (found,) = (each for each in resources(observation) if each.name == name)
    return found


@pytest.mark.parametrize(
    "name, saturated, free",
    [
        ("processors", seen(steps=steps(cpu_wait=2.0)), seen(steps=steps(cpu_wait=0.1))),
        ("API process", seen(api_cpu=0.95), seen(api_cpu=0.2)),
        ("arithmetic", seen(steps=steps(operations=int(700e9))), seen()),
        ("KV memory", seen(steps=waits("blocks", 2.0)), seen()),
        ("KV memory", seen(steps=steps(preemptions=1)), seen(last=now(used=500))),
        ("rows", seen(steps=waits("rows", 2.0)), seen()),
        ("pace", seen(steps=waits("pace", 2.0)), seen()),
        ("token budget", seen(steps=waits("budget", 2.0)), seen()),
        ("memory reads", seen(steps=steps(bytes=int(80e9))), seen()),
        ("readers", seen(first=lingering(9), last=lingering(12)), seen(first=lingering(9), last=lingering(0))),
        ("bookkeeping", seen(steps=steps(schedule=5.0, execute=4.6)), seen()),
    ],
)
def test_a_resource_saturates(name: Name, saturated: Observation, free: Observation) -> None:
    found = named(name, saturated)
    assert found.state == "saturated" and found.evidence
    assert named(name, free).state == "free"
    assert bottleneck(saturated, resources(saturated)).resource == name


def test_what_is_not_told_is_unknown() -> None:
    blind = type(SETTINGS)(max_num_seqs=16)
    assert named("arithmetic", seen(settings=blind)).state == "unknown"
    assert named("memory reads", seen(settings=blind)).share is None
    assert "does not say" in named("memory reads", seen(settings=blind)).meaning
    idle = named("memory reads", seen(steps=StepTotals()))
    assert (idle.state, idle.meaning) == ("unknown", "Nothing was computed.")
    assert named("API process", seen(api_cpu=None)).state == "unknown"
    assert named("token budget", seen(settings=blind)).state != "unknown", "the steps tell of their budgets"


def test_a_machine_that_is_used_up_hides_limits_and_limits_hide_reads() -> None:
    both = seen(steps=waits("rows", 8.0, operations=int(700e9)))
    assert bottleneck(both, resources(both)).resource == "arithmetic"
    few = seen(steps=waits("rows", 8.0, bytes=int(90e9)))
    assert bottleneck(few, resources(few)).resource == "rows"


def test_short_bursts_of_work_saturate_nothing() -> None:
    quiet = seen(steps=steps(**IDLE, steps=50, rows=50, decodes=50, bytes=int(4.9e9), operations=int(45e9)))
    assert quiet.memory == pytest.approx(0.98) and quiet.busy == pytest.approx(0.05)
    assert named("memory reads", quiet).state == "busy"
    found = bottleneck(quiet, resources(quiet))
    assert found.resource is None and "5% of the time" in found.sentence


def test_a_few_steps_without_a_processor_bound_nobody() -> None:
    rare = seen(steps=steps(**IDLE, steps=50, rows=50, decodes=50, cpu_wait=0.4))
    contended = named("processors", rare)
    assert (contended.state, contended.share) == ("busy", pytest.approx(0.8))
    assert contended.waited == pytest.approx(0.4 / rare.seconds)
    assert bottleneck(rare, resources(rare)).resource is None


def test_an_engine_that_is_not_ready_comes_first() -> None:
    down = seen(ready=False, why_not="it ended", steps=waits("rows", 5.0))
    found = bottleneck(down, resources(down))
    assert found.resource == "engine" and "it ended" in found.sentence


def test_without_load_there_is_nothing_to_judge() -> None:
    nothing = seen(steps=steps(**dict.fromkeys(steps().__struct_fields__[:-1], 0)))
    assert "no load" in bottleneck(nothing, resources(nothing)).sentence
