"""Whatever ends a request early, and wherever it is then: the engine is rid of it by its next step."""

from dataclasses import dataclass

import pytest

from penstock.access.admission import QueueBounds
from penstock.core.config import SchedulerConfig
from penstock.core.request import Standing
from penstock.core.sampling import SamplingParams
from support.made_up_model import kv_spec
from support.world import World
from support.world_engine import Worker
from support.world_jobs import CONTEXT, Faults, Job, Scenario
from support.world_manners import CHAT, COMPLETIONS, EMBEDDINGS, RESPONSES, Front, Manner, language

VICTIM, OTHER = 1, 2
# The victim comes after the other request, and has so many seconds then.
ARRIVES, LIVES = 0.5, 1.5
LONG_PROMPT = 80
WAYS = ["user leaves", "stream is left", "whole answer is left", "stream is late", "whole answer is late", "drained"]


@dataclass(frozen=True)
class Seen:
    """One look at the engine, after a turn: the victim's positions that are computed, None where it is not there."""

    at: float
    computed: int | None
    used: int


class Watched(World):
    """A world that notes what it sees of the victim."""

    seen: list[Seen]

    def check(self, worker: Worker) -> None:
        super().check(worker)
        assert worker.core is not None
        scheduler = worker.core.scheduler
        members = [sequence for sequence in scheduler._sequences.values() if sequence.request.sampling.seed == VICTIM]
        waiting = [each for each in scheduler._requests.values() if each[0].request.sampling.seed == VICTIM]
        computed = max((sequence.computed for sequence in members), default=0)
        here = computed if members or waiting else None
        self.seen.append(Seen(self.loop.now, here, scheduler.cache.pool.num_used))


def manner(path: str, **fields: object) -> Manner:
    plain = Manner(path, False, False, None, 1, True, (0.0,), 65536, None, "rain", "")
    return Manner(**{name: fields.get(name, getattr(plain, name)) for name in plain.__dataclass_fields__})


def job(name: int, stage: str, chosen: Manner | None, **fields: object) -> Job:
    prompt = [1] * (LONG_PROMPT if stage == "prefill" else 2)
    if chosen is not None and chosen.path in (CHAT, RESPONSES):
        prompt = language()[2].encode([{"role": "user", "content": chosen.content}])
    ignores = chosen is None or chosen.path == COMPLETIONS
    made = Job(
        name=name,
        prompt=prompt,
        params=SamplingParams(max_tokens=CONTEXT - len(prompt), seed=name, ignore_eos=ignores),
        standing=Standing(),
        keep=(),
        pooling=None,
        arrives=0.0,
        reading=0.0,
        patience=None,
        outputs_wanted=None,
        manner=chosen,
    )
    for field, value in fields.items():
        setattr(made, field, value)
    return made


def run(jobs: list[Job], *, chunk: int = 1, drain_at: float | None = None) -> Watched:
    world = Watched(
        Scenario(
            seed=3,
            spec=kv_spec(4),
            num_blocks=64,
            config=SchedulerConfig(
                max_num_seqs=1, max_num_batched_tokens=chunk, max_chunk=chunk, max_model_len=CONTEXT
            ),
            prefix_caching=False,
            short_keys=False,
            kept_share=0.0,
            jobs=jobs,
            faults=Faults(**dict.fromkeys(Faults.__dataclass_fields__, 0)),
            front=Front(1.0, False, None, QueueBounds(requests=100, tokens=10**6), None, drain_at, 0.0),
        )
    )
    world.seen = []
    world.run()
    return world


def check_gone(world: Watched, victim: Job, stage: str) -> None:
    """It was where it was to be, and is gone with the first turn after its end; nobody holds what it had."""
    assert victim.ended is not None
    before = [seen for seen in world.seen if seen.at <= victim.ended and seen.computed is not None]
    after = [seen for seen in world.seen if seen.at > victim.ended]
    reached = before[-1].computed or 0
    where = "queued" if not reached else "prefill" if reached < len(victim.prompt) else "decode"
    assert where == stage
    assert all(seen.computed is None for seen in after)


@pytest.mark.parametrize("stage", ["queued", "prefill", "decode"])
@pytest.mark.parametrize("way", WAYS)
def test_the_engine_is_rid_of_it_by_the_next_step(way: str, stage: str) -> None:
    chosen = None if way == "user leaves" else manner(COMPLETIONS, stream="stream" in way or way == "drained")
    victim = job(VICTIM, stage, chosen, arrives=ARRIVES)
    drain_at = None
    if "late" in way:
        victim.manner = manner(COMPLETIONS, stream="stream" in way, timeout=LIVES)
    elif way == "drained":
        drain_at = ARRIVES + LIVES
    else:
        victim.patience = LIVES
    others = [job(OTHER, "decode", None)] if stage == "queued" else []
    world = run([victim, *others], drain_at=drain_at)
    assert victim.outcome == ("late" if "late" in way else "stopped" if way == "drained" else "aborted")
    assert victim.ended == pytest.approx(world.began + ARRIVES + LIVES, abs=0.01)
    check_gone(world, victim, stage)


def test_a_response_that_is_cancelled() -> None:
    victim = job(VICTIM, "decode", manner(RESPONSES, stream=True, cancels=6))
    world = run([victim, job(OTHER, "decode", None, arrives=1.0)], chunk=16)
    assert victim.outcome == "cancelled"
    check_gone(world, victim, "decode")


def test_an_answer_that_is_finished_and_not_read_holds_nothing() -> None:
    """Its client takes what there is every two seconds, and the connection lets nothing wait."""
    victim = job(VICTIM, "decode", manner(COMPLETIONS, stream=True, room=0), reading=8.0)
    world = run([victim], chunk=16)
    last = max(seen.at for seen in world.seen if seen.computed is not None)
    assert victim.outcome == "finished" and victim.ended is not None and victim.ended > last + 4.0


def test_vectors_that_nobody_waits_for() -> None:
    victim = job(VICTIM, "prefill", manner(EMBEDDINGS), pooling="mean", patience=LIVES)
    world = run([victim])
    assert victim.outcome == "aborted"
    later = [seen for seen in world.seen if victim.ended is not None and seen.at > victim.ended]
    assert all(seen.used == 0 for seen in later[:1])
