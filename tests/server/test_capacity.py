"""What an engine can take on follows from its configuration."""

from msgspec.structs import replace

from penstock.access.limits import Capacity
from penstock.core.config import CacheConfig, EngineConfig, ModelConfig, PoolWish, SchedulerConfig
from penstock.server.capacity import capacity_of
from support.made_up_model import kv_spec


def config(max_num_seqs: int = 256, num_blocks: int = 1000, groups: int = 1) -> EngineConfig:
    spec = kv_spec(16, (None,) * groups)
    return EngineConfig(
        model=ModelConfig("m", "m", "float32"),
        cache=CacheConfig(spec, num_blocks),
        scheduler=SchedulerConfig(max_num_seqs=max_num_seqs),
        threads=1,
    )


def test_rows_and_tokens_that_all_groups_have_room_for() -> None:
    assert capacity_of(config()) == Capacity(256, 16_000)
    assert capacity_of(config(max_num_seqs=2, groups=2)) == Capacity(2, 8_000)


def test_a_pool_that_is_yet_to_be_measured_is_estimated() -> None:
    measured = config()
    cache = replace(measured.cache, wish=PoolWish(None, 4096, 4096))
    assert capacity_of(replace(measured, cache=cache)) == Capacity(256, 16_000, estimated=True)
