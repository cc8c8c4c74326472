"""Five times what an engine can do, from clients that try again: what is served stays useful, and all is well after."""

import random
from dataclasses import replace

import pytest

from penstock.access.admission import QueueBounds
from penstock.core.config import SchedulerConfig
from penstock.core.request import Standing
from penstock.core.sampling import SamplingParams
from support.made_up_model import kv_spec
from support.world import World
from support.world_jobs import CONTEXT, Faults, Job, Scenario
from support.world_manners import COMPLETIONS, Front, Manner

# Seconds of load below what can be served, of too much, and of the first load again. Who gets no answer in PATIENCE
# seconds has no use for it.
BEFORE, OVERLOAD, AFTER = 8.0, 10.0, 16.0
PATIENCE = 3.0
RECOVERY = 5.0
TURN = 0.07
# Requests per second that this engine can finish.
PEAK = 8.0
QUEUE = QueueBounds(requests=8, tokens=10**6)
RETRIES = 5


def jobs(rng: random.Random, heeding: float) -> list[Job]:
    """Requests as they come; `heeding` of the clients wait for as long as a refusal says."""
    arrivals, now = [], 0.0
    while now < BEFORE + OVERLOAD + AFTER:
        rate = PEAK * 5.0 if BEFORE <= now < BEFORE + OVERLOAD else PEAK * 0.5
        now += rng.expovariate(rate)
        arrivals.append(now)
    manner = Manner(
        path=COMPLETIONS,
        stream=True,
        usage=False,
        timeout=PATIENCE,
        tries=1 + RETRIES,
        heeds=True,
        parts=(0.0,),
        room=65536,
        cancels=None,
        content="",
        salt="",
    )
    return [
        Job(
            name=name,
            prompt=[rng.randrange(3) for _ in range(12)],
            params=SamplingParams(max_tokens=8, seed=name, ignore_eos=True),
            standing=Standing(),
            keep=(),
            pooling=None,
            arrives=arrival,
            reading=0.0,
            patience=None,
            outputs_wanted=None,
            manner=replace(manner, heeds=rng.random() < heeding, stream=rng.random() < 0.5),
        )
        for name, arrival in enumerate(arrivals, 1)
    ]


def run(heeding: float, bounds: QueueBounds = QUEUE) -> tuple[float, float, float]:
    """Goodput as a share: before, of the peak while there is too much, and once the load has fallen."""
    rng = random.Random(7)
    world = World(
        Scenario(
            seed=7,
            spec=kv_spec(4),
            num_blocks=64,
            config=SchedulerConfig(max_num_seqs=4, max_num_batched_tokens=64, max_model_len=CONTEXT),
            prefix_caching=True,
            short_keys=False,
            kept_share=0.0,
            jobs=jobs(rng, heeding),
            faults=Faults(**dict.fromkeys(Faults.__dataclass_fields__, 0)),
            front=Front(1.0, False, None, bounds, None, None, 0.0),
            # As long as always, so that there is such a thing as a peak.
            turns=(TURN,),
        )
    ).run()
    every = world.plan.jobs
    fallen = BEFORE + OVERLOAD
    good = [job for job in every if job.outcome == "finished"]
    during = [job for job in good if job.ended is not None and BEFORE + 1.0 <= job.ended < fallen]
    return (
        _share([job for job in every if job.arrives < BEFORE]),
        len(during) / (OVERLOAD - 1.0) / PEAK,
        _share([job for job in every if job.arrives >= fallen + RECOVERY]),
    )


def _share(some: list[Job]) -> float:
    return sum(job.outcome == "finished" for job in some) / len(some)


@pytest.mark.parametrize("heeding", [1.0, 0.5, 0.0])
def test_goodput_holds_and_recovers_whatever_clients_make_of_refusals(heeding: float) -> None:
    before, during, after = run(heeding)
    assert before >= 0.95 and during >= 0.8 and after >= 0.95


def test_without_bounds_it_does_not() -> None:
    """What the test above finds is admission's doing."""
    assert run(0.0, QueueBounds(requests=10**6, tokens=10**9))[1] < 0.65
