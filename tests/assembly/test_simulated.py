"""A replica that computes nothing: the pace of its steps on a made-up clock, its tokens, and what is refused."""

import json
from collections import Counter
from pathlib import Path

import msgspec
import pytest

from penstock.assembly.build import build_engine
from penstock.assembly.prepare import prepare
from penstock.assembly.simulated import TimedExecutor
from penstock.assembly.simulated_config import deployment_of
from penstock.configuration.options import EngineOptions
from penstock.core.config import EngineConfig
from penstock.core.errors import StartupError
from penstock.core.plan import Ending, StepPlan
from penstock.core.sampling import SamplingParams
from penstock.engine.core import EngineCore
from penstock.planning.calibration import prior_basis
from penstock.planning.latency import decode_step, prefill_step
from penstock.simulation.times import StepTimes
from support.simulation import make_request

MODELS = json.loads((Path(__file__).parents[2] / "benchmarks" / "public_models.json").read_text())


def configured(model: str = "haiku", **options: object) -> EngineConfig:
    return prepare(EngineOptions.of(model=model, simulate="h100", threads=1, **options), api_beside=True).config


def settings(model: str = "haiku", **options: object) -> dict[str, str]:
    given = EngineOptions.of(model=model, **{"simulate": "h100", **options})
    return {reason.setting: str(reason) for reason in prepare(given, api_beside=True).reasons}


class Clock:
    """Moves when something sleeps, and by `step` each time it is looked at."""

    def __init__(self, step: float = 0.0) -> None:
        self.now, self.step = 100.0, step
        self.slept: list[float] = []

    def __call__(self) -> float:
        self.now += self.step
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


def engine_on(clock: Clock, config: EngineConfig) -> EngineCore:
    """The engine of a configuration, with another clock."""
    core = build_engine(config, lambda *_bytes: None).core
    timed = core._executor
    assert isinstance(timed, TimedExecutor)
    timed._clock, timed._sleep = clock, clock.sleep
    return core


def test_steps_last_as_long_as_the_latency_model_says() -> None:
    config, clock = configured(), Clock()
    core = engine_on(clock, config)
    assert config.simulated is not None
    deployment = deployment_of(config.simulated, json.loads((Path(config.model.path) / "config.json").read_text()))
    efficiency = prior_basis(deployment).efficiency
    request = make_request(0, list(range(100, 160)), 5)
    core.add(msgspec.structs.replace(request, sampling=SamplingParams(max_tokens=5, seed=1, ignore_eos=True)))
    times = [100.0]
    while core.has_work:
        core.step()
        times.append(clock.now)
    took = [after - before for before, after in zip(times, times[1:], strict=False)]
    wanted = [prefill_step(deployment, efficiency, 60).seconds]
    wanted += [decode_step(deployment, efficiency, 1, 60 + more).seconds for more in range(1, 5)]
    assert took == pytest.approx(wanted)


def test_a_long_step_shows_that_it_lives_and_a_late_one_is_not_made_longer() -> None:
    class Slow(StepTimes):
        def of(self, plan: StepPlan) -> tuple[float, float]:
            return 1.0, 0.0

    config, clock = configured(), Clock()
    core = engine_on(clock, config)
    timed = core._executor
    assert isinstance(timed, TimedExecutor)
    timed._times = Slow.__new__(Slow)
    core.add(make_request(0, [100, 101], 1))
    before = timed.beats()
    core.step()
    assert clock.now == pytest.approx(101.0) and max(clock.slept) <= 0.05 and timed.beats() - before >= 20
    late = Clock(step=2.0)
    timed._clock, timed._sleep = late, late.sleep
    core.add(make_request(1, [100, 101], 1))
    core.step()
    assert late.slept == []


def test_outputs_end_at_random_unless_their_ends_are_ignored() -> None:
    config = configured(simulate_output_len=20)
    core = engine_on(Clock(), config)
    ends = prepare(EngineOptions.of(model="haiku"), api_beside=True).end_tokens(None).ids
    for number in range(200):
        core.add(msgspec.structs.replace(make_request(number, [100 + number], 400), eos_token_ids=ends))
    tokens, endings = Counter[int](), Counter[str]()
    while core.has_work:
        for output in core.step():
            tokens[output.request_id] += len(output.gained.tokens)
            if isinstance(output.gained.ending, Ending):
                endings[output.gained.ending.reason] += 1
    assert set(endings) <= {"stop", "length"} and endings.total() == 200
    # The mean of 200 geometric lengths of 20 deviates by 1.4.
    assert 13 < sum(tokens.values()) / 200 < 27


def test_the_pool_is_what_the_devices_have_left() -> None:
    small, large = configured().cache, configured(kv_cache_memory=100 << 20).cache
    assert small.num_blocks > 100 * large.num_blocks
    told = settings()
    assert "what H100 SXM would have left" in told["kv cache memory"] and "no weights" in told["load format"]
    assert "as asked" in settings(kv_cache_memory=100 << 20)["kv cache memory"]


def test_formats_are_those_that_are_asked_for() -> None:
    found = configured(quantization="int4", kv_cache_dtype="int8").simulated
    assert found is not None and (found.dtype, found.kv_cache_dtype) == ("int4", "int8")
    assert settings(quantization="int4")["quantization"].startswith("quantization: int4")


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"simulate": "h1000"}, "no device that is known here. Near it are"),
        ({"simulate_output_len": 5}, "of no use without --simulate"),
        ({"simulate": "h100", "device": "cuda"}, "do not go together"),
        ({"simulate": "h100", "speculative": "ngram"}, "has no drafts"),
        ({"simulate": "h100", "simulate_output_len": 0}, "must be at least 1"),
        ({"simulate": "xeon 8480+"}, "has the memory that is put into it"),
    ],
)
def test_what_cannot_be_simulated_is_one_sentence(options: dict[str, object], told: str) -> None:
    with pytest.raises(StartupError, match=told):
        prepare(EngineOptions.of(model="haiku", **options), api_beside=True)


def test_a_model_needs_no_weights_but_room_on_the_devices(tmp_path: Path) -> None:
    usual = {"architectures": ["LlamaForCausalLM"], "rms_norm_eps": 1e-5, "hidden_act": "silu"}
    (tmp_path / "config.json").write_text(json.dumps({**MODELS["Llama-3.1-70B"], **usual}))
    with pytest.raises(StartupError, match=r"does not fit into 1 x H100 SXM: its weights take 141\.\d GB of each"):
        prepare(EngineOptions.of(model=str(tmp_path), simulate="h100"), api_beside=True)
    config = prepare(EngineOptions.of(model=str(tmp_path), simulate="4x h100"), api_beside=True).config
    assert config.simulated is not None and (config.simulated.on, config.simulated.split) == ("4 x H100 SXM", 4)
