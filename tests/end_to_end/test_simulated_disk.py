"""What `penstock simulate` says of a disk is what becomes of the same requests: hits of pool and disk, and bytes."""

import random
from pathlib import Path
from typing import Any

import pytest

from penstock import LLM, SamplingParams
from penstock.assembly.prepare import prepare
from penstock.cache.shelves import Shelves
from penstock.configuration.options import EngineOptions
from penstock.core.events import SampleOutput
from penstock.kernels.cpu.native import OBSTACLE
from penstock.loading.hub import resolve_model
from penstock.loading.json_file import read_json
from penstock.planning.disk import Disk, disk_told
from penstock.planning.hardware import Device
from penstock.planning.latency import Deployment
from penstock.planning.priors import TYPICAL
from penstock.planning.reading import shape_of
from penstock.scheduler.build import build_scheduler
from penstock.simulation.books import cache_of
from penstock.simulation.disk import SimulatedDisk
from penstock.simulation.fleet import play_fleet
from penstock.simulation.loop import Arrival
from penstock.simulation.replica import Replica
from penstock.simulation.sources import Given
from penstock.simulation.times import StepTimes
from support.simulation import make_request

pytestmark = pytest.mark.skipif(OBSTACLE is not None, reason=str(OBSTACLE))

HAIKU = Deployment(
    shape_of(read_json(resolve_model("haiku") / "config.json")),
    Device("some processor", "cpu", 24e9, 20e9, {"fp32": 1e11, "bf16": 2e11}, 0.0, 0.0, "measured"),
)
OPTIONS: dict[str, Any] = {"max_model_len": 256, "max_num_seqs": 1, "speculative": "off"}
CONVERSATIONS, TURNS, ADDED = 6, 4, 48
PARAMS = SamplingParams(max_tokens=1, temperature=0.0)
# Blocks of the pool, which has room for two conversations, and more of a disk than all of them take.
POOL, ALL = 26, 1000


def turns() -> list[list[int]]:
    """The conversations' prompts, a random one's next turn at a time."""
    luck, said = random.Random(1), {}
    order = [each for each in range(CONVERSATIONS) for _ in range(TURNS)]
    luck.shuffle(order)
    prompts = []
    for each in order:
        said[each] = said.get(each, []) + [luck.randrange(300, 4096) for _ in range(ADDED)]
        prompts.append(said[each])
    # What was written last is told with a further step.
    return [*prompts, [1] * 15]


def really(folder: Path, slots: int) -> tuple[list[int], int, int]:
    """Of each prompt the tokens that pool and disk had; of all those of the disk; blocks that were written."""
    llm = LLM("haiku", kv_disk=str(folder), kv_disk_size=slots * (65536 + 128), kv_cache_memory=POOL * 65536, **OPTIONS)
    found, came, step = [], [0], llm._core.step

    def counted() -> list[SampleOutput]:
        outputs = step()
        came[0] += sum(each.tokens for fetched in llm._core.facts.fetched for each in fetched.came)
        return outputs

    llm._core.step = counted  # type: ignore[method-assign]
    for tokens in turns():
        before = llm.load.prefix_hit_tokens
        llm.generate({"prompt_token_ids": tokens}, PARAMS)
        found.append(llm.load.prefix_hit_tokens - before)
        assert llm.flush(600.0)
    return found, came[0], llm.load.shelf("disk").written


def simulated(slots: int) -> tuple[list[int], int, int]:
    config = prepare(EngineOptions.of(model="haiku", **OPTIONS), api_beside=False).config
    scheduler = build_scheduler(config.scheduler, cache_of(HAIKU, POOL * 65536))
    disk = SimulatedDisk(Disk(slots * 65536, 1e9, 1e9), scheduler)
    arrivals = [Arrival(10.0 * number, make_request(number, tokens, 1)) for number, tokens in enumerate(turns())]
    played = play_fleet([Replica(scheduler, StepTimes(HAIKU, TYPICAL), 0, disk)], Given(arrivals))
    figures = played.figures
    return [each.cached_tokens for each in played.requests], figures.disk_hit_tokens, figures.disk_written


@pytest.mark.parametrize("slots", [30, 50, ALL])
def test_a_simulation_hits_what_the_engine_does(slots: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # How fast this machine and its disk are decides nothing here.
    monkeypatch.setattr(Shelves, "pays", lambda self, tokens, slots: True)
    monkeypatch.setattr(Shelves, "patience", lambda self, tokens: 600.0)
    found = simulated(slots)
    assert found == really(tmp_path / "kv", slots)
    hits, from_disk, _ = found
    assert 0 < from_disk < sum(hits)
    # All that came before, in whole blocks.
    wanted = CONVERSATIONS * sum(ADDED * turn for turn in range(TURNS))
    assert sum(hits) == wanted if slots == ALL else sum(hits) < wanted


def test_a_plan_says_how_many_bytes_files_take(tmp_path: Path) -> None:
    llm = LLM("haiku", kv_disk=str(tmp_path), **OPTIONS)
    llm.generate({"prompt_token_ids": turns()[0]}, PARAMS)
    assert llm.flush(600.0)
    sizes = [path.stat().st_size for path in tmp_path.glob("1-*/??/*.kv")]
    told = disk_told(HAIKU, TYPICAL, Disk(1e9, 1e9, 1e9))
    assert len(sizes) == ADDED // 16
    # What a file has beside its block: a head, a nonce, a tag.
    assert all(0 < size - 16 * told.token_bytes <= 128 for size in sizes)
