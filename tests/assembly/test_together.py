"""What models of one server get of a machine that is made up."""

import pytest
from msgspec.structs import replace

from penstock.assembly.prepare import this_machine
from penstock.assembly.together import prepare_together
from penstock.configuration.facts import MachineFacts
from penstock.configuration.options import EngineOptions
from penstock.core.devices import Gpu, GpuFacts
from penstock.core.errors import ConfigurationError, InsufficientMemory

GIB = 1 << 30
CARDS = GpuFacts(tuple(Gpu(index, "Made-up 100", (9, 0), 80 << 30, 79 << 30) for index in range(2)))


def machine(gibibytes: float) -> MachineFacts:
    """One with this much memory, and two GPUs."""
    return replace(this_machine(api_beside=True), available_memory=int(gibibytes * GIB), gpus=CARDS)


def haiku(**options: object) -> EngineOptions:
    return EngineOptions.of("haiku", speculative="off", **options)


def pools(gibibytes: float, *options: EngineOptions) -> list[int]:
    """Bytes of the models' pools."""
    names = [(str(number),) for number in range(len(options))]
    configs = [each.config for each in prepare_together(options, names, machine(gibibytes)).models]
    return [config.cache.num_blocks * config.cache.spec.block_bytes for config in configs]


def test_one_alone_is_prepared_as_ever() -> None:
    together = prepare_together([haiku()], [()], machine(8))
    assert together.shared == () and not together.models[0].config.gives_way


def test_two_share_what_is_left() -> None:
    whole, half = pools(100, haiku())[0], pools(4, haiku(), haiku())
    assert half[0] == half[1] < whole and sum(half) > 0.75 * 2.9 * GIB
    # Where there is enough, or a size was asked for, the other one gets what it has use for.
    assert pools(100, haiku(), haiku()) == [whole, whole]
    small, rest = pools(4, haiku(kv_cache_memory=GIB // 4), haiku())
    assert small <= GIB // 4 and rest == whole


def test_models_that_do_not_fit_say_what_each_needs() -> None:
    with pytest.raises(InsufficientMemory, match="'a' needs 5.. MiB .*'b' needs 1.5. GiB .*1.00 GiB of KV pool"):
        prepare_together([haiku(), haiku(kv_cache_memory=GIB)], [("a",), ("b",)], machine(1.9))


def test_a_gpu_has_one_model() -> None:
    with pytest.raises(ConfigurationError, match="2 models would be computed on cuda:0, which one engine alone"):
        prepare_together([haiku(device="cuda"), haiku(device="cuda")], [("a",), ("b",)], machine(8))
    for other in ("cuda:1", "cpu"):
        together = prepare_together([haiku(device="cuda"), haiku(device=other)], [("a",), ("b",)], machine(8))
        assert [each.config.device for each in together.models] == ["cuda:0", other]


def test_each_has_a_name_of_its_own() -> None:
    with pytest.raises(ConfigurationError, match="Two models would be served as 'haiku'; give one of them another"):
        prepare_together([haiku(), haiku()], [(), ("other", "haiku")], machine(8))
