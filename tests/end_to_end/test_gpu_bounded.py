"""Bounded contexts on a GPU, or on its kernels as Triton interprets them, are those of the CPU."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock import LLM, SamplingParams
from penstock.core.kv_policy import POLICY_KINDS, WEIGHED, KVPolicy, PolicyKind
from penstock.engine.interface import RequestOutput
from penstock.kernels import rope
from penstock.kernels.cpu.native import OBSTACLE
from support import checkpoints
from support.device import DEVICE, INTERPRETED

pytest.importorskip("triton", reason="Triton is not installed")
pytestmark = [pytest.mark.cuda, pytest.mark.skipif(OBSTACLE is not None, reason=str(OBSTACLE))]

# Blocks are dropped in the prompt and, since an output has more than 4 tokens, behind it. It is no longer than that: to
# interpret a step takes as long as it has tokens.
PROMPT = [(7 * each) % 90 + 4 for each in range(76)]
SIZES = {"dtype": "float32", "max_model_len": 256, "max_num_seqs": 2, "max_num_batched_tokens": 128}
ON_GPU: dict[str, Any] = {"device": "cuda" if INTERPRETED else str(DEVICE), "kv_cache_memory": 16 << 20}


class Watched:
    """An engine, and what it does.

    Attributes:
        dropped: groups and indices of slots that were given up.
        masses: what attention steps have told of.
        launched: steps that were launched before the one ahead of them was known.
    """

    def __init__(self, path: Path, **options: Any) -> None:
        self.llm = LLM(str(path), threads=1, speculative="off", enable_prefix_caching=False, **(SIZES | options))
        self.dropped: list[tuple[int, list[int]]] = []
        self.masses: list[list[list[float]]] = []
        self.launched = 0
        core: Any = self.llm._core
        scheduler, executor = core.scheduler, core.executor
        drop, commit, execute = scheduler.cache.drop, scheduler.commit, executor.execute

        def dropping(blocks: Any, group: int, indices: Any, **given: Any) -> None:
            self.dropped.append((group, list(indices)))
            drop(blocks, group, indices, **given)

        def committing(plan: Any, result: Any) -> Any:
            self.masses += [each.masses for each in result.attended]
            return commit(plan, result)

        def executing(plan: Any) -> Any:
            handle = execute(plan)
            self.launched += handle.under_way
            return handle

        scheduler.cache.drop, scheduler.commit, executor.execute = dropping, committing, executing

    def ask(self, *asked: tuple[list[int], KVPolicy | None], tokens: int = 6, **params: Any) -> list[RequestOutput]:
        """Outputs of prompts that run together, each with its policy."""
        sampling = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True, **params)
        intake: Any = self.llm._intake
        requests = [intake.request(prompt, sampling, kv_policy=policy) for prompt, policy in asked]
        return [state.take() for state in self.llm._run(requests)]


def tokens_of(output: RequestOutput) -> list[int]:
    return [token for delta in output.deltas for token in delta.token_ids]


def policy(kind: PolicyKind, tokens: int = 64) -> KVPolicy:
    return KVPolicy(kind=kind, tokens=tokens, sinks=16, **({} if kind == "window" else {"recent": 16, "patience": 20}))


def same_masses(mine: list[list[list[float]]], right: list[list[list[float]]]) -> None:
    assert len(mine) == len(right)
    for found, expected in zip(mine, right, strict=True):
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_allclose(one, other, atol=1e-3)


@pytest.mark.parametrize(
    "family, kind",
    [
        ("llama", "window"),
        ("llama", "h2o"),
        *(
            pytest.param("llama", kind, marks=pytest.mark.slow)
            for kind in POLICY_KINDS
            if kind not in ("window", "h2o")
        ),
        pytest.param("gemma3", "h2o", marks=pytest.mark.slow),
    ],
)
def test_what_is_held_is_what_a_processor_holds(family: str, kind: PolicyKind, tmp_path: Path) -> None:
    """By steps that are launched, and by those that wait since log probabilities are asked for."""
    layers = {"layer_types": ["sliding_attention", "full_attention"]} if family == "gemma3" else {}
    path = checkpoints.make(family, tmp_path / "model", num_hidden_layers=2, **layers)
    there, here = Watched(path, **ON_GPU), Watched(path, device="cpu")
    for params in ({}, {"logprobs": 2}):
        ((found,), (expected,)) = (each.ask((PROMPT, policy(kind)), **params) for each in (there, here))
        assert tokens_of(found) == tokens_of(expected)
        assert found.dropped_tokens == expected.dropped_tokens >= len(PROMPT) - 64
    assert there.dropped == here.dropped and bool(there.masses) == (kind in WEIGHED)
    same_masses(there.masses, here.masses)
    assert there.launched


# Rows of padding have what memory had; interpreted, numpy tells where that is too large to be multiplied.
@pytest.mark.filterwarnings("ignore:.* encountered in:RuntimeWarning")
def test_others_are_left_alone(tmp_path: Path) -> None:
    """Steps of two requests are under way together, with graphs and without; sums have one order."""
    path = checkpoints.make("llama", tmp_path / "model", num_hidden_layers=2)
    other, prompt, window = [(11 * each) % 90 + 4 for each in range(20)], PROMPT[:60], policy("window", 48)
    options = ON_GPU | {"deterministic": True, "kv_cache_dtype": "int8"}
    alone, both = (Watched(path, **options) for _ in range(2))
    while both.llm._core.use_idle_time():
        pass
    (expected,), (bounded,) = alone.ask((other, None), tokens=8), alone.ask((prompt, window), tokens=8)
    found = both.ask((other, None), (prompt, window), tokens=8)
    assert [tokens_of(each) for each in found] == [tokens_of(expected), tokens_of(bounded)]
    assert (found[0].dropped_tokens, found[1].dropped_tokens) == (0, bounded.dropped_tokens)
    assert both.dropped == alone.dropped != []


def test_a_stream_outruns_the_models_context(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its positions are turned although no table has them."""
    monkeypatch.setattr(rope, "_FIRST_POSITIONS", 64)
    path = checkpoints.make("llama", tmp_path / "model", num_hidden_layers=2)
    there, here = Watched(path, max_model_len=64, **ON_GPU), Watched(path, max_model_len=64, device="cpu")
    ((found,), (expected,)) = (each.ask((PROMPT, policy("window", 48)), tokens=12) for each in (there, here))
    assert tokens_of(found) == tokens_of(expected) and len(PROMPT) > 64
    assert found.dropped_tokens == expected.dropped_tokens > 30
