"""Several processes compute one model: the tokens of one, whatever else goes on, and one end for all."""

import contextlib
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from penstock import LLM, BeamSearchParams, KVPolicy, SamplingParams
from penstock.core.errors import EngineUnavailable, InsufficientMemory
from penstock.core.kv import build_kv_spec
from penstock.kernels.cpu.native import OBSTACLE
from penstock.loading.checkpoint import open_checkpoint
from penstock.loading.fitting import model_of
from support.checkpoints import make
from support.live_server import RunningServer, serving
from support.waiting import PATIENCE, until

pytestmark = pytest.mark.skipif(OBSTACLE is not None, reason=str(OBSTACLE))

BODY = {"prompt": "the fox", "max_tokens": 60, "temperature": 0, "seed": 7, "ignore_eos": True}


Outputs = list[tuple[list[int], list[float]]]


def _outputs(model: Path, **options: Any) -> Outputs:
    """Tokens, and their log probabilities, of prompts that share a beginning, long ones and short ones."""
    llm = LLM(str(model), **{"dtype": "float32", "packed_cache": "off", "threads": 2} | options)
    shared = [7, 9, 30, 31, 32, 33] * 9
    prompts: list[Any] = [shared + [40 + number] * (1 + 11 * number) for number in range(6)]
    params = SamplingParams(max_tokens=64, temperature=0.0, ignore_eos=True, logprobs=0)
    seeded = SamplingParams(max_tokens=64, temperature=0.9, top_p=0.9, seed=3, ignore_eos=True, logprobs=0)
    found = [each.samples[0] for given in (params, seeded) for each in llm.generate(prompts, given)]
    # Each does what it is there for, also where it comes with others.
    assert bool(llm.load.preemptions) == ("kv_cache_memory" in options)
    assert "speculative" not in options or llm.totals.drafted > 0
    return [(each.token_ids, [one.logprob for one in each.logprobs or ()]) for each in found]


@pytest.fixture(scope="module")
def expected(served_checkpoint: Path) -> Outputs:
    return _outputs(served_checkpoint)


# Preempted, since not all fit; and drafts.
TIGHT = {"kv_cache_memory": 370_000, "max_model_len": 256}
DRAFTS = {"speculative": "ngram", "speculative_depth": 3}


def _alone(*layouts: dict[str, Any]) -> list[Any]:
    """Layouts whose every part others have too, in `make soak` by themselves: each rank is a process that starts."""
    return [pytest.param(each, marks=pytest.mark.slow) for each in layouts]


@pytest.mark.parametrize(
    "options",
    [
        {"tensor_parallel_size": 4, "max_num_batched_tokens": 64},
        {"tensor_parallel_size": 2, **TIGHT, **DRAFTS},
        {"tensor_parallel_size": 2, "pipeline_parallel_size": 2},
        {"context_parallel_size": 3, "max_num_batched_tokens": 64},
        {"context_parallel_size": 2, **TIGHT, **DRAFTS},
        *_alone(
            {"tensor_parallel_size": 2},
            {"tensor_parallel_size": 2, **TIGHT},
            {"tensor_parallel_size": 2, **DRAFTS},
            {"context_parallel_size": 2},
            {"context_parallel_size": 2, **TIGHT},
            {"context_parallel_size": 2, **DRAFTS},
        ),
    ],
)
def test_tokens_are_those_of_one_process(served_checkpoint: Path, expected: Outputs, options: dict[str, Any]) -> None:
    found = _outputs(served_checkpoint, **options)
    assert [tokens for tokens, _ in found] == [tokens for tokens, _ in expected]
    assert [each for _, numbers in found for each in numbers] == pytest.approx(
        [each for _, numbers in expected for each in numbers], abs=1e-4
    )


@pytest.mark.parametrize(
    "options",
    [
        {"pipeline_parallel_size": 3, "max_num_batched_tokens": 64},
        {"pipeline_parallel_size": 2, **TIGHT, **DRAFTS},
        *_alone(
            {"pipeline_parallel_size": 2},
            {"pipeline_parallel_size": 2, **TIGHT},
            {"pipeline_parallel_size": 2, **DRAFTS},
        ),
    ],
)
def test_stages_give_the_bits_of_one_process(
    served_checkpoint: Path, expected: Outputs, options: dict[str, Any]
) -> None:
    assert _outputs(served_checkpoint, **options) == expected


# What stages give in bfloat16 and int8, `tests/parallel/test_stages_parity.py` compares without processes.
@pytest.mark.parametrize(
    "weights", [*_alone({"dtype": "bfloat16"}, {"quantization": "int8"}), {"quantization": "int4"}]
)
def test_stages_give_these_bits_in_fewer_bits_too(served_checkpoint: Path, weights: dict[str, str]) -> None:
    alone = _outputs(served_checkpoint, **weights)
    assert _outputs(served_checkpoint, pipeline_parallel_size=2, **weights) == alone


@dataclass(frozen=True)
class _Together:
    """What one engine makes of requests of several kinds: tokens, vectors."""

    tokens: list[list[int]]
    vectors: list[list[float]]

    @classmethod
    def of(cls, model: Path, draft: Path, **options: Any) -> "_Together":
        """With keys and values in int8, and drafts of a model; of prompts in windows, whole ones, and beams."""
        drafts = {"speculative": "draft", "draft_model": str(draft), "speculative_depth": 3}
        llm = LLM(
            str(model), dtype="float32", packed_cache="off", threads=2, kv_cache_dtype="int8", **drafts, **options
        )
        prompts: list[Any] = [[7, 9, 30, 31] * 20 + [40 + number] for number in range(3)]
        params = SamplingParams(max_tokens=48, temperature=0.0, ignore_eos=True)
        window = KVPolicy(kind="window", tokens=48, sinks=4)
        found = [*llm.generate(prompts, params), *llm.generate(prompts, params, kv_policy=window)]
        found += llm.beam_search(prompts[0], BeamSearchParams(beam_width=3, max_tokens=12))
        return cls([sample.token_ids for each in found for sample in each.samples], llm.embed(prompts))


def test_vectors_drafts_beams_windows_and_int8_are_those_of_one_process(
    served_checkpoint: Path, tmp_path: Path
) -> None:
    draft = make("llama", tmp_path / "draft", seed=3, num_hidden_layers=1, max_position_embeddings=2048)
    alone = _Together.of(served_checkpoint, draft)
    for layout in ("tensor_parallel_size", "pipeline_parallel_size"):
        found = _Together.of(served_checkpoint, draft, **{layout: 2})
        assert found.tokens == alone.tokens, layout
        for mine, right in zip(found.vectors, alone.vectors, strict=True):
            assert mine == pytest.approx(right, abs=1e-5), layout


def test_a_context_that_no_rank_could_keep_is_served_by_two(served_checkpoint: Path) -> None:
    """Each has a pool that refuses the context alone; the tokens are those of one process that has room for it."""
    layers = model_of(open_checkpoint(served_checkpoint)).kv_layers
    pool = 20 * build_kv_spec(layers, "float32").block_bytes
    longest = ("--max-model-len", "600", "--dtype", "float32", "--packed-cache", "off", "--threads", "2")
    with pytest.raises(InsufficientMemory, match="20 blocks and one sequence of 600 tokens needs 38"):
        LLM(str(served_checkpoint), kv_cache_memory=pool, max_model_len=600, dtype="float32", packed_cache="off")
    body = BODY | {"prompt": [7 + number % 300 for number in range(530)], "max_tokens": 64}
    found = []
    for memory, *ranks in ((2 * pool, "--context-parallel-size", "2"), (1 << 24,)):
        with serving(served_checkpoint, *longest, "--kv-cache-memory", str(memory), *ranks) as server:
            # The second finds the beginning of the first in the pool.
            found.append([server.post("/v1/completions", body)["choices"] for _ in range(2)])
    spread, alone = found
    assert spread == alone and spread[0] == spread[1]


def test_a_rank_that_ends_lets_the_step_fail(served_checkpoint: Path) -> None:
    before = _ranks_of(psutil.Process())
    llm = LLM(str(served_checkpoint), tensor_parallel_size=2, packed_cache="off", threads=2)
    (rank,) = (each for each in _ranks_of(psutil.Process()) if each not in before)
    rank.kill()
    until(lambda: not rank.is_running() or rank.status() == psutil.STATUS_ZOMBIE)
    (found,) = llm.generate([[5, 6, 7]], SamplingParams(max_tokens=4))
    assert found.samples[0].finish_reason == "error"
    assert "The computation of this step failed" in (found.samples[0].error or "")


def test_ranks_end_with_the_block_that_has_them(served_checkpoint: Path) -> None:
    before = _ranks_of(psutil.Process())
    options: dict[str, Any] = {"tensor_parallel_size": 2, "packed_cache": "off", "threads": 2}
    with LLM(str(served_checkpoint), **options) as llm:
        (found,) = llm.generate([[5, 6, 7]], SamplingParams(max_tokens=4))
        assert found.samples[0].finish_reason == "length"
        assert len(_ranks_of(psutil.Process())) == len(before) + 1
    # Not once garbage is collected: `llm` is still there.
    assert len(_ranks_of(psutil.Process())) == len(before)
    llm.close()
    with pytest.raises(EngineUnavailable, match="was closed"):
        llm.generate([[5, 6, 7]])


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return []


def _ranks_of(process: psutil.Process) -> list[psutil.Process]:
    return [each for each in process.children(recursive=True) if "penstock.assembly.rank" in _command(each)]


@pytest.fixture(scope="module")
def server(served_checkpoint: Path) -> Iterator[RunningServer]:
    """Two stages of two ranks: the first rank and the next one have the last layers, and the others the first."""
    with serving(served_checkpoint, "--tensor-parallel-size", "2", "--pipeline-parallel-size", "2") as server:
        yield server


# One that shares layers with the engine, and one of the other stage, as the second one is, too.
@pytest.mark.parametrize("victim", [0, pytest.param(1, marks=pytest.mark.slow), 2])
def test_a_killed_rank_is_replaced_with_its_group_and_streams_go_on(server: RunningServer, victim: int) -> None:
    (engine,) = psutil.Process(server.process.pid).children()
    ranks = _ranks_of(engine)
    assert len(ranks) == 3
    restarts = server.metric("penstock_engine_restarts_total")
    answer = server.post("/v1/completions", BODY)["choices"]
    with ThreadPoolExecutor(8) as pool:
        # None goes on without this rank, so that all are under way when it ends.
        ranks[victim].suspend()
        waiting = [pool.submit(server.post, "/v1/completions", BODY) for _ in range(8)]
        server.wait_for("penstock_requests_in_flight", 8)
        # If that took long, it counts as stopped, and has been killed.
        with contextlib.suppress(psutil.NoSuchProcess):
            ranks[victim].kill()
        assert [each.result(timeout=PATIENCE)["choices"] for each in waiting] == [answer] * 8
    assert server.metric("penstock_engine_restarts_total") == restarts + 1
    psutil.wait_procs([engine, *ranks], timeout=PATIENCE)
    assert not any(each.is_running() for each in (engine, *ranks))


def test_a_stopped_rank_is_replaced_too(server: RunningServer) -> None:
    (engine,) = psutil.Process(server.process.pid).children()
    stopped = _ranks_of(engine)[1]
    answer = server.post("/v1/completions", BODY)["choices"]
    stopped.suspend()
    assert server.post("/v1/completions", BODY)["choices"] == answer
    until(lambda: not stopped.is_running())


def test_ranks_do_not_outlive_a_killed_server(served_checkpoint: Path) -> None:
    options = ("--tensor-parallel-size", "2", "--threads", "2")
    with pytest.raises(AssertionError), serving(served_checkpoint, *options) as server:
        (engine,) = psutil.Process(server.process.pid).children()
        everything = [engine, *_ranks_of(engine)]
        # Not even one that is stopped.
        everything[-1].suspend()
        server.process.send_signal(signal.SIGKILL)
        until(lambda: not any(each.is_running() for each in everything), lambda: "a process outlives its server")
