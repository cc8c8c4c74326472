"""Bounded contexts of real models: what is computed without some tokens is what transformers computes without them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from penstock import LLM, SamplingParams
from penstock.core.kv_policy import POLICY_KINDS, WEIGHED, KVPolicy, PolicyKind
from penstock.core.plan import RowPlan
from penstock.engine.interface import RequestOutput
from penstock.kernels.cpu.native import OBSTACLE
from penstock.llm import Completion
from support import checkpoints

pytestmark = pytest.mark.skipif(OBSTACLE is not None, reason=str(OBSTACLE))

PROMPT = [(7 * each) % 90 + 4 for each in range(150)]


@dataclass
class Seen:
    """What a run has done: which positions are held, and what each position saw.

    Attributes:
        held: by place, as things stand.
        saw: of each position computed, those that were held then, itself included.
        masses: what each row's last positions gave to places, with the positions at them.
    """

    held: list[int] = field(default_factory=list)
    saw: dict[int, list[int]] = field(default_factory=dict)
    masses: list[tuple[RowPlan, list[float], list[int]]] = field(default_factory=list)


def watched(llm: LLM) -> Seen:
    """Have the engine's cache and executor tell what one request does."""
    seen = Seen()
    core: Any = llm._core
    cache, executor, size = core.scheduler.cache, core.executor, core.scheduler.cache.spec.block_size
    drop, execute = cache.drop, executor.execute
    group = next(number for number, each in enumerate(cache.spec.groups) if each.sees.last is None)

    def dropped(blocks: Any, of: int, indices: Sequence[int], **options: Any) -> None:
        assert of == group, "only what sees everything is bounded"
        gone = {index * size + place for index in indices for place in range(size)}
        seen.held = [position for place, position in enumerate(seen.held) if place not in gone]
        drop(blocks, of, indices, **options)

    def executed(plan: Any) -> Any:
        done = execute(plan)
        for row in plan.rows:
            if row.dropped and row.start != max(seen.saw) + 1:
                continue
            for position in range(row.start, row.start + row.count):
                seen.held.append(position)
                seen.saw[position] = seen.held.copy()
            for told in done.result().attended:
                seen.masses.append((row, told.masses[group], seen.held.copy()))
        return done

    cache.drop, executor.execute = dropped, executed
    return seen


def complete(llm: LLM, policy: KVPolicy | None, tokens: int = 40, prompt: Sequence[int] = PROMPT) -> Completion:
    params = SamplingParams(temperature=0.0, max_tokens=tokens, logprobs=5, ignore_eos=True)
    [output] = llm.generate({"prompt_token_ids": list(prompt)}, params, kv_policy=policy)
    return output


def tokens_of(output: RequestOutput) -> list[int]:
    return [token for delta in output.deltas for token in delta.token_ids]


def mask_of(saw: Mapping[int, Sequence[int]]) -> torch.Tensor:
    """What transformers adds to scores, [1, 1, queries, keys]."""
    mask = torch.full((1, 1, len(saw), len(saw)), torch.finfo(torch.float32).min)
    for position, visible in saw.items():
        mask[0, 0, position, visible] = 0.0
    return mask


def assert_likeliest(output: Completion, logits: torch.Tensor) -> None:
    """`logits` are those of the positions from which the output's tokens came."""
    expected = torch.log_softmax(logits.double(), dim=-1)
    logprobs = output.samples[0].logprobs
    assert logprobs is not None
    for told, right in zip(logprobs, expected, strict=True):
        for token, logprob in zip(told.top_tokens, told.top_logprobs, strict=True):
            assert abs(float(right[token]) - logprob) < 2e-4


@pytest.mark.parametrize("kind", WEIGHED)
@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_what_is_left_is_what_is_attended_to(family: str, kind: PolicyKind, tmp_path: Path) -> None:
    """Logits, and what attention is told of, against transformers with each position's own mask."""
    path = checkpoints.make(family, tmp_path / "model", num_hidden_layers=4)
    reference = checkpoints.load_reference(path)
    llm = LLM(str(path), dtype="float32", max_model_len=512)
    seen = watched(llm)
    output = complete(llm, KVPolicy(kind=kind, tokens=96, sinks=16, recent=24, patience=40))
    assert output.dropped_tokens == len(seen.saw) - len(seen.held)
    assert len(seen.held) < len(seen.saw) == len(PROMPT) + 39
    sequence = [*PROMPT, *output.token_ids][: len(seen.saw)]
    whole = mask_of(seen.saw)
    kinds = getattr(reference.config, "layer_types", None) or ["full_attention"] * 4
    window = getattr(reference.config, "sliding_window", None) or 0
    windowed = mask_of({each: list(range(max(0, each - window + 1), each + 1)) for each in seen.saw})
    masks = {"full_attention": whole, "sliding_attention": windowed} if len(set(kinds)) > 1 else whole
    with torch.inference_mode():
        made = reference(torch.tensor([sequence]), attention_mask=masks, use_cache=False, output_attentions=True)
    assert_likeliest(output, made.logits[0, len(PROMPT) - 1 :])
    full = [given for kind, given in zip(kinds, made.attentions, strict=True) if kind == "full_attention"]
    weights = torch.stack(full)[:, 0].sum(dim=(0, 1))
    assert seen.masses
    for row, masses, held in seen.masses:
        given = weights[row.start + row.count - row.weighed : row.start + row.count][:, held].sum(dim=0)
        expected = [float(part.sum()) for part in given.split(16)]
        np.testing.assert_allclose(masses, expected, atol=2e-3)


@pytest.mark.parametrize("sinks", [0, 16, 40])
def test_a_window_has_the_positions_in_the_cache(sinks: int, tmp_path: Path) -> None:
    """In one layer keys depend on their token and position alone: the same as these tokens, one behind the other."""
    path = checkpoints.make("llama", tmp_path / "model", num_hidden_layers=1)
    llm = LLM(str(path), dtype="float32", max_model_len=512)
    seen = watched(llm)
    output = complete(llm, KVPolicy(kind="window", tokens=96, sinks=sinks), tokens=200)
    sequence, reference = [*PROMPT, *output.token_ids], checkpoints.load_reference(path)
    assert all(len(visible) <= 96 for visible in seen.saw.values())
    assert set(range(-(-sinks // 16) * 16)) <= set(seen.held)
    with torch.inference_mode():
        logits = [
            reference(torch.tensor([[sequence[each] for each in seen.saw[position]]])).logits[0, -1]
            for position in range(len(PROMPT) - 1, len(sequence) - 1)
        ]
    assert_likeliest(output, torch.stack(logits))


@pytest.mark.parametrize("kept", ["auto", "int8", "int4"])
@pytest.mark.parametrize("kind", POLICY_KINDS)
def test_bounded_requests_leave_others_alone(kind: PolicyKind, kept: str) -> None:
    """Their neighbours' bits are those that they have alone; so are their own where their policy has room for all."""
    speculative = "auto" if kept == "auto" else "off"
    llm = LLM("haiku", kv_cache_dtype=kept, speculative=speculative, max_model_len=512, max_num_seqs=4)
    params = SamplingParams(temperature=0.0, max_tokens=30, logprobs=2, ignore_eos=True)
    policies = [None, KVPolicy(kind=kind, tokens=96, recent=32), None, KVPolicy(kind=kind, tokens=400)]
    prompts = [[(11 * each + number) % 900 + 4 for each in range(130)] for number in range(4)]
    alone = [complete(llm, None, 30, prompt) for prompt in prompts]
    requests = [
        llm._intake.request(prompt, params, kv_policy=policy) for prompt, policy in zip(prompts, policies, strict=True)
    ]
    together = [state.take() for state in llm._run(requests)]
    for number in (0, 2, 3):
        assert tokens_of(together[number]) == alone[number].token_ids
    assert len(tokens_of(together[1])) == 30 and together[1].dropped_tokens
