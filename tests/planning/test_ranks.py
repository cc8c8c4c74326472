"""Ranks that share a processor, beside threads: what they hold, what they take, and what was measured of them."""

import msgspec
import pytest

from penstock.core.errors import ConfigurationError
from penstock.planning.calibration import prior_basis
from penstock.planning.estimates import Workload, estimate, most_throughput, prompts_of
from penstock.planning.formats import FORMATS
from penstock.planning.latency import MeasuredStep, Rows, decode_step, step_time
from penstock.planning.memory import memory_of
from penstock.planning.processors import PROCESSOR
from penstock.planning.rank_costs import PRIORS
from penstock.planning.ranks import basis_of_ranks, beside_threads, in_ranks, measured_costs, one_process, with_ranks
from penstock.planning.wire import RANKS, sent_of_parts
from support.cores import BILLION, CORES, one


def test_the_model_is_that_of_the_measurements() -> None:
    assert BILLION.parameters / 1e9 == pytest.approx(1.24, abs=0.01)


# Of docs/benchmarks/ranks.md: what two ranks reached of two threads; prompts of 512 tokens.
MEASURED = [
    ("int4", "parts", 1, 0.74, 0.92),
    ("int4", "parts", 8, 0.76, 0.72),
    ("bfloat16", "parts", 1, 0.83, 0.93),
    ("bfloat16", "parts", 8, 0.79, 0.87),
    ("int4", "stages", 1, 0.61, 0.47),
    ("int4", "stages", 8, 0.63, 0.40),
]


@pytest.mark.parametrize("weights, kind, prompts, prefill, decode", MEASURED)
def test_priors_hold_what_was_measured(weights: str, kind: str, prompts: int, prefill: float, decode: float) -> None:
    """Nine of ten figures have to be within what is told; all of these are."""
    whole = one(weights)
    ranks, costs = in_ranks(whole, split=2) if kind == "parts" else in_ranks(whole, stages=2)
    efficiency, (low, high) = with_ranks(PROCESSOR, costs), costs.interval
    workload = Workload(512, 64, float(prompts))
    threads, parts = (prompts_of(each, efficiency, workload) for each in (whole, ranks))
    told = threads.seconds / parts.seconds if prompts == 1 else threads.behind / parts.behind
    assert told / high <= prefill <= told / low
    rows = max(1.0, prompts / ranks.stages)
    told = (
        decode_step(whole, efficiency, float(prompts), 544).seconds / decode_step(ranks, efficiency, rows, 544).seconds
    )
    assert told / high <= decode <= told / low


def test_a_rank_has_its_part_of_the_processor() -> None:
    ranks, _ = in_ranks(one(), split=2)
    part = ranks.device
    assert (part.memory, part.bandwidth, part.rates["int8"], part.parts) == (10e9, 11e9, 1.1e12, 2)
    assert part.whole == CORES and one_process(ranks) == one()


def test_parts_share_weights_and_keys_out_and_contexts_keys_alone() -> None:
    whole, context = memory_of(one(), 1024), 1024
    parts, contexts = (memory_of(in_ranks(one(), **sizes)[0], context) for sizes in ({"split": 2}, {"stripes": 2}))
    assert parts.device_weights_bytes == pytest.approx(whole.device_weights_bytes / 2, abs=1)
    assert contexts.device_weights_bytes == whole.device_weights_bytes
    assert parts.device_bytes == contexts.device_bytes == whole.device_bytes / 2
    keys = [in_ranks(one(), **sizes)[0].cache_bytes(context) for sizes in ({"split": 2}, {"stripes": 2})]
    assert keys == [one().cache_bytes(context) / 2] * 2


def test_stages_have_the_layers_that_the_engine_gives_them() -> None:
    """The head weighs as much as four layers, so that the first stage has ten of sixteen (docs/benchmarks/ranks.md)."""
    assert in_ranks(one(), stages=2)[0].stage_part == 10 / 16


def test_contexts_share_out_attention_and_nothing_else() -> None:
    contexts, _ = in_ranks(one(), stripes=2)
    rows = Rows(1.0, 100_000.0)
    told, alone = (step_time(each, PROCESSOR, rows) for each in (contexts, one()))
    assert told.cache == pytest.approx(alone.cache) and told.reading == pytest.approx(2 * alone.reading)
    assert told.messages > 0 == alone.messages


@pytest.mark.parametrize("sizes", [{"split": 2}, {"stages": 2}, {"stripes": 2}])
def test_threads_are_faster_by_what_is_known(sizes: dict[str, int]) -> None:
    ranks, costs = in_ranks(one(), **sizes)
    basis = basis_of_ranks(prior_basis(one()), costs)
    assert "a prior" in basis.said and "nothing of this processor was measured" in basis.said
    for concurrency in (1.0, 8.0):
        told = beside_threads(ranks, basis.efficiency, Workload(512, 64, concurrency))
        assert told is not None and told.output < 1 < told.tpot
        assert told.advice.startswith("Take one process: 2 ranks on the same cores make")
        threads = estimate(one(), PROCESSOR, Workload(512, 64, concurrency))
        assert told.threads_tokens_per_second == pytest.approx(threads.output_tokens_per_second)


def test_ranks_that_were_measured_to_be_faster_are_advised() -> None:
    ranks, costs = in_ranks(one(), split=2)
    faster = with_ranks(PROCESSOR, msgspec.structs.replace(costs, waits=-0.3))
    told = beside_threads(ranks, faster, Workload(512, 64))
    assert told is not None and told.output > 1 and told.advice.startswith("Take 2 ranks")


def test_where_nothing_fits_nothing_is_compared() -> None:
    small = msgspec.structs.replace(one(), device=msgspec.structs.replace(CORES, memory=1e9))
    assert beside_threads(in_ranks(small, split=2)[0], PROCESSOR, Workload(512, 64)) is None


def test_waiting_for_the_slowest_is_in_all_rates() -> None:
    ranks, costs = in_ranks(one(), split=2)
    patient, none = (with_ranks(PROCESSOR, msgspec.structs.replace(costs, waits=waits)) for waits in (1.0, 0.0))
    workload = Workload(512, 128, 8.0)
    assert most_throughput(ranks, patient, workload) < 0.7 * most_throughput(ranks, none, workload)
    assert most_throughput(one(), patient, workload) == most_throughput(one(), none, workload)


def test_messages_are_those_of_the_rank_that_sends_most() -> None:
    ranks, costs = in_ranks(one(), split=2)
    slow = msgspec.structs.replace(ranks, device=msgspec.structs.replace(ranks.device, link=1.0))
    first, second = (sent_of_parts(ranks.shape, RANKS, 2, 8.0, 8.0, rank=rank) for rank in (0, 1))
    told = decode_step(slow, with_ranks(PROCESSOR, costs), 8.0, 100.0)
    assert told.messages == pytest.approx(second.bytes, rel=1e-3) and second.bytes > first.bytes


def test_what_ranks_take_is_learnt_from_their_steps() -> None:
    ranks, prior = in_ranks(one(), split=2)
    true = with_ranks(PROCESSOR, msgspec.structs.replace(prior, waits=0.5))
    kinds = [Rows(float(rows), 300.0) for rows in (1, 2, 4, 8)] + [Rows(chunks=((0.0, 256.0),))]
    steps = [MeasuredStep(rows, step_time(ranks, true, rows).seconds) for rows in kinds]
    found = measured_costs(ranks, prior, PROCESSOR, steps, "five steps")
    assert found.waits == pytest.approx(0.5) and found.said == "five steps"
    low, high = found.interval
    assert 0.9 < low < 1 < high < 1.1
    # They take the prior's place for these ranks, and for no others.
    assert in_ranks(one(), split=2, measured=(found,))[1] is found
    small = msgspec.structs.replace(one().shape, layers=one().shape.layers[:1], hidden=64)
    for whole, sizes in (
        (one(), {"split": 4}),
        (one(), {"stages": 2}),
        (one(), {"stripes": 2}),
        (msgspec.structs.replace(one(), weights=FORMATS["int8"]), {"split": 2}),
        (msgspec.structs.replace(one(), shape=small), {"split": 2}),
    ):
        other = in_ranks(whole, **sizes, measured=(found,))[1]
        assert other.waits == PRIORS[other.kind].waits and other.said.startswith("a prior: ")
        assert other.said.endswith("other ranks, models or formats were calibrated here")


@pytest.mark.parametrize(
    "sizes, why",
    [
        ({"stripes": 2, "split": 2}, "does not go together with --tensor-parallel-size"),
        ({"split": 64}, "--tensor-parallel-size is 64, but the model has 32 query heads"),
        ({"stages": 17}, "16 layers cannot be in 17 stages"),
    ],
)
def test_what_cannot_be_is_refused_by_name(sizes: dict[str, int], why: str) -> None:
    with pytest.raises(ConfigurationError, match=why):
        in_ranks(one(), **sizes)
