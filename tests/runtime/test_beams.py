"""Beam search of a model: what transformers finds, to the token, and the same bits whatever else is computed."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from penstock import LLM, BeamSearch, BeamSearchParams, Grammar, SamplingParams
from penstock.assembly.results import Completion
from penstock.core.beam_search import EarlyStopping
from penstock.core.errors import InvalidParameter
from support import checkpoints

END = 2
PROMPTS = [[5 + (7 * index + 3 * place) % 300 for place in range(length)] for index, length in enumerate((3, 17, 32))]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoints.make("llama", tmp_path_factory.mktemp("models") / "llama", max_position_embeddings=512)


@pytest.fixture(scope="module")
def llm(checkpoint: Path) -> LLM:
    return LLM(str(checkpoint), dtype="float32", threads=1, max_num_seqs=16)


def found(completion: Completion) -> list[tuple[list[int], float, float]]:
    """Its outputs, with the bits of how likely they are."""
    samples = completion.samples
    assert all(sample.beam is not None for sample in samples)
    return [(each.token_ids, each.beam.cumulative_logprob, each.beam.score) for each in samples if each.beam]


def ids(*prompts: list[int]) -> list[dict[str, list[int]]]:
    return [{"prompt_token_ids": prompt} for prompt in prompts]


@pytest.mark.parametrize("width", [1, 2, 4])
@pytest.mark.parametrize(
    ("length_penalty", "early_stopping"),
    [(1.0, False), (1.0, True), (1.0, "never"), (0.0, "never"), (2.0, False), (2.0, "never"), (-1.0, False)],
)
def test_outputs_are_those_of_transformers(
    checkpoint: Path, llm: LLM, width: int, length_penalty: float, early_stopping: EarlyStopping
) -> None:
    reference = checkpoints.load_reference(checkpoint)
    params = BeamSearchParams(
        beam_width=width, max_tokens=14, length_penalty=length_penalty, early_stopping=early_stopping
    )
    for prompt, completion in zip(PROMPTS, llm.beam_search(ids(*PROMPTS), params), strict=True):
        searched = {"num_return_sequences": width, "length_penalty": length_penalty, "early_stopping": early_stopping}
        expected = reference.generate(
            torch.tensor([prompt]),
            num_beams=width,
            max_new_tokens=14,
            do_sample=False,
            return_dict_in_generate=True,
            output_scores=True,
            eos_token_id=END,
            # Of a row that is shorter than others, what is behind its end.
            pad_token_id=1,
            **(searched if width > 1 else {}),
        )
        outputs = [row[len(prompt) :].tolist() for row in expected.sequences]
        whole = [row[: row.index(END) + 1] if END in row else row for row in outputs]
        assert [tokens for tokens, _, _ in found(completion)] == whole
        assert [each.finish_reason for each in completion.samples] == [
            "stop" if row[-1] == END else "length" for row in whole
        ]
        if width > 1:
            scores = [score for _, _, score in found(completion)]
            assert scores == pytest.approx(expected.sequences_scores.tolist(), rel=1e-4)


def asked_with(**options: Any) -> SamplingParams:
    return SamplingParams(n=4, beam=BeamSearch(width=4), max_tokens=14, temperature=0.0, **options)


def test_the_n_best_are_the_first_of_all(llm: LLM) -> None:
    all_four, best = (
        llm.beam_search(ids(PROMPTS[0]), BeamSearchParams(beam_width=4, max_tokens=9, n=n))[0] for n in (None, 2)
    )
    assert found(best) == found(all_four)[:2]


def test_log_probabilities_are_of_each_token_and_add_up(llm: LLM) -> None:
    (completion,) = llm.beam_search(ids(PROMPTS[1]), BeamSearchParams(beam_width=3, max_tokens=9, logprobs=2))
    for sample in completion.samples:
        assert sample.logprobs is not None and sample.beam is not None
        assert [each.token for each in sample.logprobs] == sample.token_ids
        assert sum(each.logprob for each in sample.logprobs) == pytest.approx(sample.beam.cumulative_logprob)
        assert all(len(each.top_tokens) == 2 for each in sample.logprobs)
    # What the model gives for the same tokens where they are chosen otherwise.
    first = completion.samples[0]
    prompt = [*PROMPTS[1], *first.token_ids]
    scored = llm.generate(ids(prompt), SamplingParams(max_tokens=1, prompt_logprobs=2, temperature=0.0))[0]
    assert scored.prompt_logprobs is not None and first.logprobs is not None
    told = scored.prompt_logprobs[len(PROMPTS[1]) :]
    assert [each.logprob for each in told if each] == [each.logprob for each in first.logprobs]


def test_the_bits_are_the_same_in_any_batch(checkpoint: Path, llm: LLM) -> None:
    params = SamplingParams(n=4, beam=BeamSearch(width=4), max_tokens=20, temperature=0.0, ignore_eos=True)
    alone = [found(llm.generate(ids(prompt), params)[0]) for prompt in PROMPTS]
    sampled = SamplingParams(max_tokens=25, seed=3, n=2)
    together = llm.generate(
        [*ids(*PROMPTS), *ids(*PROMPTS), *ids(*PROMPTS)],
        [params, params, params, *[sampled] * 3, params, params, params],
    )
    assert [found(each) for each in (*together[:3], *together[6:])] == [*alone, *alone]
    # Small chunks, one row beside others at a time, and a pool without a prefix cache.
    other = LLM(
        str(checkpoint),
        dtype="float32",
        threads=2,
        max_num_seqs=4,
        max_num_batched_tokens=4,
        enable_prefix_caching=False,
    )
    assert [found(each) for each in other.generate(ids(*PROMPTS), params)] == alone


def test_preempted_beams_find_the_same(checkpoint: Path, llm: LLM) -> None:
    params = SamplingParams(n=4, beam=BeamSearch(width=4), max_tokens=60, temperature=0.0, ignore_eos=True)
    prompts = [[token + turn for token in prompt] for turn in range(3) for prompt in PROMPTS]
    alone = [found(each) for each in llm.generate(ids(*prompts), params)]
    assert llm.load.preemptions == 0
    block = 2 * llm._core.scheduler.cache.spec.block_bytes
    tight = LLM(
        str(checkpoint), dtype="float32", threads=1, max_num_seqs=36, kv_cache_memory=32 * block, max_model_len=128
    )
    assert [found(each) for each in tight.generate(ids(*prompts), params)] == alone
    assert tight.load.preemptions > 0


def test_a_prompt_in_the_prefix_cache_changes_nothing(checkpoint: Path) -> None:
    llm = LLM(str(checkpoint), dtype="float32", threads=1, max_num_seqs=4)
    params = BeamSearchParams(beam_width=4, max_tokens=20)
    prompt = [*PROMPTS[2], *PROMPTS[1]]
    first, again = (llm.beam_search(ids(prompt), params)[0] for _ in range(2))
    assert (first.cached_tokens, again.cached_tokens) == (0, 48)
    assert found(first) == found(again)


def test_drafts_are_of_others_only(checkpoint: Path, llm: LLM) -> None:
    drafting = LLM(
        str(checkpoint), dtype="float32", threads=1, max_num_seqs=8, speculative="ngram", speculative_depth=3
    )
    beams = SamplingParams(n=4, beam=BeamSearch(width=4), max_tokens=20, temperature=0.0, ignore_eos=True)
    greedy = SamplingParams(max_tokens=40, temperature=0.0, ignore_eos=True)
    asked = [*ids(PROMPTS[0]), *ids(PROMPTS[1])]
    mine, other = drafting.generate(asked, [beams, greedy])
    assert found(mine) == found(llm.generate(asked[:1], beams)[0])
    assert other.token_ids == llm.generate(asked[1:], greedy)[0].token_ids


class TestWhatChangesLogits:
    """Each hypothesis has a state of its own: what it has said counts for it alone."""

    def test_penalties(self, llm: LLM) -> None:
        asked = asked_with(frequency_penalty=2.0, presence_penalty=2.0, ignore_eos=True, logprobs=0)
        for sample in llm.generate(ids(PROMPTS[0]), asked)[0].samples:
            assert sample.logprobs is not None
            # Each token by itself, behind those before it.
            for place in (3, 13):
                bias = {token: -2.0 * (sample.token_ids[:place].count(token) + 1) for token in sample.token_ids[:place]}
                alone = SamplingParams(max_tokens=1, temperature=0.0, logit_bias=bias, logprobs=20)
                (one,) = llm.generate(ids([*PROMPTS[0], *sample.token_ids[:place]]), alone)
                assert one.logprobs is not None
                tops = dict(zip(one.logprobs[0].top_tokens, one.logprobs[0].top_logprobs, strict=True))
                expected = tops.get(sample.token_ids[place])
                assert expected is None or sample.logprobs[place].logprob == pytest.approx(expected, abs=1e-5)

    def test_bad_words_and_allowed_tokens(self, llm: LLM) -> None:
        allowed = (11, 12, 13)
        asked = asked_with(allowed_token_ids=allowed, bad_words_ids=((11, 12), (13, 13)))
        for sample in llm.generate(ids(PROMPTS[0]), asked)[0].samples:
            pairs = list(zip(sample.token_ids, sample.token_ids[1:], strict=False))
            assert set(sample.token_ids) <= set(allowed)
            assert (11, 12) not in pairs and (13, 13) not in pairs

    def test_a_single_output_is_told_where_more_are_asked_for(self, llm: LLM) -> None:
        asked = asked_with(allowed_token_ids=(11,))
        best, *others = llm.generate(ids(PROMPTS[0]), asked)[0].samples
        assert best.token_ids == [11] * 14
        assert {each.finish_reason for each in others} == {"error"}
        assert others[0].error is not None and "Only 1 output is possible" in others[0].error

    def test_stop_strings_and_tokens(self, llm: LLM) -> None:
        free = llm.generate(ids(PROMPTS[1]), asked_with(ignore_eos=True))[0].samples
        word = free[0].text[3:5]
        stopped = llm.generate(ids(PROMPTS[1]), asked_with(ignore_eos=True, stop=(word,)))[0].samples
        ended = [each for each in stopped if each.finish_reason == "stop"]
        assert ended
        assert all(each.stop_reason == word for each in ended)
        assert not any(word in each.text for each in stopped)
        token = free[0].token_ids[-1]
        by_token = llm.generate(ids(PROMPTS[1]), asked_with(ignore_eos=True, stop_token_ids=(token,)))[0]
        assert any(each.stop_reason == token and each.token_ids[-1] == token for each in by_token.samples)

    def test_grammars(self, llm: LLM) -> None:
        asked = asked_with(grammar=Grammar.regex("[ab]{3}c"))
        samples = llm.generate(ids(PROMPTS[0]), asked)[0].samples
        assert len({sample.text for sample in samples}) >= 2
        assert all(re.fullmatch("[ab]{3}c", sample.text) for sample in samples)
        assert {sample.finish_reason for sample in samples} == {"stop"}


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ({"temperature": 0.7}, "temperature"),
        ({"top_p": 0.9}, "top_p"),
        ({"top_k": 5}, "top_k"),
        ({"min_p": 0.1}, "min_p"),
        ({"n": 3}, "n"),
    ],
)
def test_what_beam_search_has_no_place_for_is_refused_by_name(given: dict[str, object], param: str) -> None:
    with pytest.raises(InvalidParameter) as refused:
        SamplingParams(beam=BeamSearch(width=2), **given)  # type: ignore[arg-type]
    assert refused.value.param == param
