"""How many processes compute a model together, and what does not go with that."""

from typing import Any

import msgspec
import pytest

from penstock.configuration.bounding import resolve_policies
from penstock.configuration.facts import MachineFacts, ModelFacts, Positions
from penstock.configuration.geometry import bytes_of, resolve_geometry
from penstock.configuration.machines import resolve_machines
from penstock.configuration.options import EngineOptions
from penstock.configuration.pool_size import WORKSPACE_BYTES
from penstock.configuration.ranks import check_alone, check_ranks, resolve_ranks
from penstock.configuration.reasons import Reasons
from penstock.core.config import MachinesConfig, RanksConfig
from penstock.core.devices import Gpu, GpuFacts
from penstock.core.errors import ConfigurationError
from penstock.core.kv import KVSpec, LayerKV, build_kv_spec
from penstock.core.kv_policy import WEIGHED
from penstock.core.shares import Stripe, TensorRank
from penstock.core.stages import Stage

MACHINE = MachineFacts(1 << 34, 4, False)
LAYERS = (LayerKV(2, 64), LayerKV(2, 64, window=128))
FACTS = ModelFacts("m", "bfloat16", 10, 10, 8, 2, 1024, LAYERS)


def _resolved(facts: ModelFacts = FACTS, machine: MachineFacts = MACHINE, **options: Any) -> RanksConfig | None:
    one = build_kv_spec(facts.kv_layers, "bfloat16")
    return resolve_ranks(EngineOptions.of("m", **options), facts, machine, None, one, "bfloat16", Reasons())


def _gpus(*names: str, first: int = 0) -> MachineFacts:
    found = [Gpu(first + index, name, (9, 0), 1 << 37, 1 << 36) for index, name in enumerate(names)]
    return msgspec.structs.replace(MACHINE, gpus=GpuFacts(tuple(found)))


def _on_gpu(machine: MachineFacts, **options: Any) -> RanksConfig | None:
    asked = EngineOptions.of("m", **options)
    gpu = machine.gpus.gpus[0]
    facts = _facts(2, 2)
    return resolve_ranks(asked, facts, machine, gpu, build_kv_spec(facts.kv_layers, "bfloat16"), "bfloat16", Reasons())


def test_each_rank_has_a_gpu_that_is_like_the_others() -> None:
    found = _on_gpu(_gpus("H200", "H200", first=3), tensor_parallel_size=2)
    assert found is not None and found.size == 2


@pytest.mark.parametrize(
    "names, options, message",
    [
        (
            ["H200"],
            {"tensor_parallel_size": 2},
            "takes cuda:0 and those behind it, and there is no cuda:1; this process",
        ),
        (["H200", "L4"], {"tensor_parallel_size": 2}, "cuda:0 is a H200 and cuda:1 a L4"),
        (["H200"] * 2, {"pipeline_parallel_size": 2}, "--pipeline-parallel-size 2 is not possible on cuda:0"),
        (["H200"] * 2, {"context_parallel_size": 2}, "--context-parallel-size 2 is not possible on cuda:0"),
        (["H200"] * 2, {"expert_parallel_size": 2}, "--expert-parallel-size 2 is not possible on cuda:0"),
        (["H200"] * 2, {"tensor_parallel_size": 2, "swap_space": 1 << 30}, "--swap-space do not go together"),
        (["H200"] * 2, {"tensor_parallel_size": 2, "kv_host_memory": 1 << 30}, "--kv-host-memory do not go together"),
    ],
)
def test_what_several_gpus_do_not_do(names: list[str], options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        _on_gpu(_gpus(*names), **options)


def test_a_gpu_has_its_part_of_the_weights_and_of_a_block() -> None:
    gpus = _gpus("H200", "H200")
    found = _on_gpu(gpus, tensor_parallel_size=2)
    facts = msgspec.structs.replace(FACTS, num_parameters=1000)
    alone = bytes_of(
        facts, "bfloat16", ("none", "none"), (build_kv_spec(LAYERS, "bfloat16", 16), None), (), None, mapped=False
    )
    assert found is not None
    spec = found.specs[0]
    weights, block = bytes_of(facts, "bfloat16", ("none", "none"), (spec, found), (), gpus.gpus.gpus[0], mapped=False)
    assert (weights, block) == (alone[0] // 2, spec.block_bytes)


def _facts(*heads: int) -> ModelFacts:
    layers = tuple((LayerKV(count, 64), LayerKV(count, 64, window=128)) for count in heads)
    return msgspec.structs.replace(FACTS, rank_layers=layers, unit=128)


def test_one_process_is_what_there_is_unless_more_are_asked_for() -> None:
    assert _resolved() is None


def test_each_rank_has_the_heads_of_its_own_in_its_pool() -> None:
    found = _resolved(_facts(2, 1), tensor_parallel_size=2)
    assert found is not None
    assert (found.size, found.unit, found.experts) == (2, 128, 1)
    assert found.specs[0].block_bytes == 2 * found.specs[1].block_bytes


@pytest.mark.parametrize(
    "options, found",
    [
        ({"tensor_parallel_size": 4}, (4, 1, 1)),
        ({"tensor_parallel_size": 4, "expert_parallel_size": 2}, (4, 2, 1)),
        ({"expert_parallel_size": 3, "pipeline_parallel_size": 2}, (3, 3, 2)),
        ({"pipeline_parallel_size": 2}, (1, 1, 2)),
        ({"context_parallel_size": 3}, (1, 1, 1, 3)),
    ],
)
def test_processes_that_are_asked_for(options: dict[str, int], found: tuple[int, ...]) -> None:
    split, experts, stages, stripes = (*found, 1)[:4]
    layout = check_ranks(EngineOptions.of("m", **options))
    assert layout == (split, experts, stages, stripes) and layout.size == split * stages * stripes


@pytest.mark.parametrize(
    "options, message",
    [
        ({"tensor_parallel_size": 0}, "--tensor-parallel-size is 0; it must be from 1 to 64."),
        ({"tensor_parallel_size": True}, "--tensor-parallel-size is True"),
        ({"expert_parallel_size": 65}, "--expert-parallel-size is 65"),
        ({"tensor_parallel_size": 4, "expert_parallel_size": 3}, "which does not divide the 4 processes"),
        ({"pipeline_parallel_size": 1.5}, "--pipeline-parallel-size is 1.5; it must be from 1 to 64."),
        ({"tensor_parallel_size": 8, "pipeline_parallel_size": 9}, "are 72 processes; there can be 64."),
        ({"context_parallel_size": -1}, "--context-parallel-size is -1; it must be from 1 to 64."),
        ({"context_parallel_size": 2, "tensor_parallel_size": 2}, "--context-parallel-size 2 .* does not go together"),
        ({"context_parallel_size": 2, "expert_parallel_size": 2}, "leave it or these out"),
        ({"context_parallel_size": 2, "pipeline_parallel_size": 2}, "leave it or these out"),
    ],
)
def test_numbers_that_cannot_be(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        check_ranks(EngineOptions.of("m", **options))


def test_stages_have_pools_of_their_own_layers_and_the_first_ranks_the_last() -> None:
    facts = msgspec.structs.replace(
        FACTS,
        kv_layers=(LayerKV(2, 64),) * 3,
        rank_layers=((LayerKV(2, 64),) * 3,),
        stage_ends=(2, 3),
        stage_stores=(frozenset({0, 1}), frozenset({2})),
    )
    found = _resolved(facts, pipeline_parallel_size=2)
    assert found is not None and (found.size, found.split, found.num_stages) == (2, 1, 2)
    assert found.specs[1].block_bytes == 2 * found.specs[0].block_bytes
    assert [(found.stage(rank), found.part(rank)) for rank in range(2)] == [
        (Stage(2, 3, 3), TensorRank(0, 1, facts.unit)),
        (Stage(0, 2, 3), TensorRank(0, 1, facts.unit)),
    ]


def test_a_block_has_the_tokens_of_a_block_of_each_rank_that_keeps_a_part_of_contexts() -> None:
    facts, out = msgspec.structs.replace(FACTS, rank_layers=(FACTS.kv_layers,) * 3), Reasons()
    options = EngineOptions.of("m", context_parallel_size=3)
    spec, ranks = resolve_geometry(options, facts, MACHINE, None, "bfloat16", out)
    alone = build_kv_spec(FACTS.kv_layers, "bfloat16", 16)
    assert ranks is not None and (ranks.size, ranks.together, ranks.specs) == (3, 3, (alone,) * 3)
    assert [ranks.stripe(rank) for rank in range(3)] == [Stripe(rank, 3) for rank in range(3)]
    assert (spec.block_size, spec.block_bytes, spec.groups) == (48, alone.block_bytes, alone.groups)
    told = {reason.setting: reason for reason in out.found}
    assert told["block size"].value == "48" and told["context parallel size"].at_start
    for mapped, copies in ((False, 3), (True, 1)):
        weights, block = bytes_of(facts, "bfloat16", ("none", "none"), (spec, ranks), (), None, mapped=mapped)
        assert weights == copies * 2 * facts.resident_parameters + 2 * WORKSPACE_BYTES
        assert block == 3 * alone.block_bytes


def test_contexts_that_are_spread_are_held_whole() -> None:
    options = EngineOptions.of("m", context_parallel_size=2)
    spec = build_kv_spec(FACTS.kv_layers, "bfloat16", 16)
    facts = msgspec.structs.replace(FACTS, rank_layers=(FACTS.kv_layers,) * 2)
    limits, _ = resolve_policies(options, facts, MACHINE, spec, 1024, lambda *_note: None)
    assert not limits.kinds and "spread over processes" in limits.why_not


@pytest.mark.parametrize("size", ["tensor_parallel_size", "context_parallel_size"])
@pytest.mark.parametrize(
    "options, message",
    [
        ({"simulate": "8xh100"}, "--simulate do not go together"),
        ({"speculative": "self"}, "--speculative self do not go together"),
        ({"speculative": "eagle"}, "take --speculative ngram, draft or off"),
        ({"kv_disk": "/tmp/kv"}, "leave --kv-disk out"),
        ({"kv_store": "valkey://here"}, "leave --kv-store out"),
    ],
)
def test_what_does_not_go_together_is_refused_by_name(options: dict[str, Any], message: str, size: str) -> None:
    with pytest.raises(ConfigurationError, match=f"--{size.replace('_', '-')} 2 and .*{message}"):
        _resolved(_facts(1, 1), **{size: 2}, **options)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"machines_at": "10.0.0.5:7400"}, "--machines-at is for --machines of 2 and more"),
        ({"machines_secret_file": "secret"}, "--machines-secret-file is for --machines of 2 and more"),
        ({"machines": 0}, "--machines is 0; it must be a number from 1 on."),
        ({"machines": 3}, "--machines is 3, which does not divide the 4 stages"),
        ({"machines": 2, "machines_at": "here"}, "'here' is no address; it has to be HOST:PORT"),
        ({"machines": 2, "machines_at": "0.0.0.0:99999"}, "is no address"),
        ({"machines": 2, "machines_at": "10.0.0.5:7400"}, "give all of them --machines-secret-file."),
    ],
)
def test_machines_that_cannot_be(options: dict[str, Any], message: str) -> None:
    asked = EngineOptions.of("m", pipeline_parallel_size=4, **options)
    with pytest.raises(ConfigurationError, match=message):
        resolve_machines(asked, check_ranks(asked).stages)


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]", "localhost"])
def test_machines_on_one_machine_need_no_secret(host: str) -> None:
    asked = EngineOptions.of("m", pipeline_parallel_size=4, machines=2, machines_at=f"{host}:7")
    found = resolve_machines(asked, check_ranks(asked).stages)
    assert found == MachinesConfig(2, host.strip("[]"), 7)
    ranks = RanksConfig(1, 32, (), KVSpec(16, 64, (), ()), stage_ends=(1, 2, 3, 4), machines=found)
    assert [list(ranks.ranks_of(machine)) for machine in range(2)] == [[0, 1], [2, 3]]


def test_without_native_kernels_ranks_are_refused() -> None:
    machine = msgspec.structs.replace(MACHINE, exact=False, obstacle="they were not built")
    with pytest.raises(ConfigurationError, match="ranks need the native kernels .they were not built"):
        _resolved(_facts(1, 1), machine, tensor_parallel_size=2)


def test_what_one_process_does_alone_is_not_shared_out() -> None:
    check_alone(EngineOptions.of("m"), "penstock evaluate")
    with pytest.raises(ConfigurationError, match="penstock evaluate computes in one process"):
        check_alone(EngineOptions.of("m", tensor_parallel_size="auto"), "penstock evaluate")
    with pytest.raises(ConfigurationError, match="penstock evaluate computes in one process"):
        check_alone(EngineOptions.of("m", expert_parallel_size=2), "penstock evaluate")


@pytest.mark.parametrize("positions", ["turned", "learned", "scaled", "none"])
def test_ranks_offer_no_policy_that_one_process_does_not(positions: Positions) -> None:
    """Nor any that weighs attention."""
    options = EngineOptions.of("m", kv_cache_dtype="auto")
    alone = msgspec.structs.replace(FACTS, kv_layers=(LayerKV(2, 64),), positions=positions)
    spec = build_kv_spec(alone.kv_layers, "bfloat16", 16)
    several = msgspec.structs.replace(alone, rank_layers=(alone.kv_layers, alone.kv_layers))
    (one, _), (ranks, _) = (
        resolve_policies(options, facts, MACHINE, spec, 1024, lambda *_note: None) for facts in (alone, several)
    )
    assert set(one.kinds) >= set(WEIGHED)
    assert ranks.kinds == tuple(kind for kind in one.kinds if kind not in WEIGHED)


def test_integers_that_become_numbers_are_told() -> None:
    facts, out = msgspec.structs.replace(_facts(1, 1), lost_integers=12_000), Reasons()
    options = EngineOptions.of("m", tensor_parallel_size=2)
    resolve_ranks(options, facts, MACHINE, None, build_kv_spec(facts.kv_layers, "bfloat16"), "bfloat16", out)
    (told,) = (reason for reason in out.found if reason.setting == "tensor parallel size")
    assert told.at_start and "12,000 weights of the files' integers become numbers" in told.why
