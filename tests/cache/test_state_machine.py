"""The KV cache against a naive model, under random operations in random order."""

import random
from collections import Counter
from collections.abc import Sequence

import pytest

from support.cache_machine import SPECS, CacheMachine, Kind

TestCacheMachine = CacheMachine.TestCase


@pytest.mark.parametrize(("runs", "each", "broken"), [(10, 12, 5), pytest.param(30, 50, 10, marks=pytest.mark.slow)])
def test_long_random_runs(runs: int, each: int, broken: int) -> None:
    """The same at random, in long runs full of hits and copies, which short ones rarely come to."""
    done: Counter[str] = Counter()
    for seed in range(runs):
        try:
            done += long_run(random.Random(seed))
        except AssertionError as error:
            error.add_note(f"run of seed {seed}")
            raise
    often = ("hit", "refused", "copied", "forked", "rolled back", "swapped in", "not swapped", "dropped", "came in")
    assert min(done[name] for name in often) >= each, done
    assert done["came in broken"] >= broken, done


@pytest.mark.parametrize(("runs", "each"), [(5, 4), pytest.param(30, 30, marks=pytest.mark.slow)])
def test_long_random_runs_of_sequences_with_sources(runs: int, each: int) -> None:
    done: Counter[str] = Counter()
    for seed in range(runs):
        done += long_run(random.Random(seed), ["sourced"])
    often = ("hit", "source found", "refused", "copied", "forked", "rolled back", "swapped in", "dropped", "came in")
    assert min(done[name] for name in often) >= each, done


def long_run(rng: random.Random, kinds: Sequence[Kind] = (*SPECS, "made up", "made up")) -> Counter[str]:
    """400 rules, all that must hold after each; returns how often it came to what."""
    machine, sources = CacheMachine(), random.Random(0)
    kind = rng.choice(kinds)
    size, blocks, kept_share = rng.choice([1, 2, 4]), rng.choice([12, 30, 80]), rng.choice([0.0, 0.3, 1.0])
    collide, caching = rng.random() < 0.3, rng.random() < 0.8
    machine.start(size, kind, blocks, collide, caching, kept_share, rng.choice([3, 12, 40]))
    for _ in range(400):
        if len(machine.alive) < 5:
            source = [sources.randrange(2) for _ in range(sources.randint(1, 12))]
            prompt = [rng.randrange(2) for _ in range(rng.randint(1, 12))]
            sequence = machine.open(prompt, rng.choice(["", "salt"]), source)
        else:
            sequence = rng.choice(machine.alive)
        kinds = ["append", "commit", "fork", "drop", "preempt", "swap", "abort", "keep", "pass"]
        match rng.choices(kinds, [8, 8, 1, 4, 1, 4, 1, 1, 1])[0]:
            case "append":
                if rng.random() < 0.7:
                    machine.swap_in(sequence, rng.random() < 0.8, rng.random() < 0.1)
                machine.attach(sequence, rng.random() < 0.2)
                wrong = rng.choice([None, None, 0, 1, 5])
                machine.append(sequence, [rng.randrange(2) for _ in range(rng.randint(0, 3))], rng.randint(1, 9), wrong)
            case "commit":
                machine.commit(rng.choice([0, 1, 9, 9]), rng.random() < 0.1)
            case "fork":
                machine.fork(sequence)
            case "drop":
                machine.drop(sequence, rng.randrange(4), rng.randrange(6), rng.randint(1, 2))
            case "preempt":
                machine.preempt(sequence)
            case "swap":
                machine.swap_out(sequence)
            case "abort":
                machine.abort(sequence)
            case "keep":
                machine.keep(sequence, rng.randint(0, 40), rng.choice([1.0, 10.0]))
            case "pass":
                machine.time_passes(rng.choice([0.5, 2.0, 20.0]))
        machine.blocks_are_accounted_for()
        machine.sequences_read_their_own_kv()
        machine.copies_hold_what_their_sequences_need()
        machine.published_slots_hold_what_they_say()
    return machine.done
