import tracemalloc

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from transformers.generation import logits_process as reference

from penstock.core.errors import RowFailed
from penstock.core.sampling import SamplingParams
from penstock.sampling.bad_words import BadWords
from penstock.sampling.choice import Choice, constants_of
from penstock.sampling.history import TokenHistory
from penstock.sampling.pipeline import Candidates, best, editing_steps, narrowing_steps, ranked

VOCABULARY = 500


def narrowing_of(params):
    return narrowing_steps(Choice(0, -1, 0, *constants_of(params, 0))) if params.temperature > 0 else ()


def prepare(logits, params, history=None, endings=(), words=None):
    """The row after the whole pipeline."""
    candidates = Candidates(logits.copy())
    for step in editing_steps(params, history, endings, words):
        assert step.changes_argmax
        step.apply(candidates)
    candidates.peak = float(candidates.logits.max())
    for step in narrowing_of(params):
        assert not step.changes_argmax
        step.apply(candidates)
        assert candidates.ids is None or int(candidates.logits.argmax()) in candidates.ids
    return candidates


def survivors(candidates):
    return set(range(candidates.logits.size)) if candidates.ids is None else set(candidates.ids.tolist())


def reference_survivors(logits, *warpers):
    scores = torch.from_numpy(logits)[None]
    for warper in warpers:
        scores = warper(torch.zeros(1, 0, dtype=torch.long), scores)
    return set(torch.isfinite(scores[0]).nonzero()[:, 0].tolist())


def random_logits(seed, size=VOCABULARY, spread=3.0):
    return (np.random.default_rng(seed).standard_normal(size) * spread).astype(np.float32)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("temperature", [0.3, 1.0, 1.7])
class TestSurvivorsEqualTransformers:
    def test_top_k(self, seed, temperature):
        logits = random_logits(seed)
        for k in (1, 2, 50, VOCABULARY - 1, VOCABULARY, 10_000):
            ours = prepare(logits, SamplingParams(temperature=temperature, top_k=k))
            assert survivors(ours) == reference_survivors(logits, reference.TopKLogitsWarper(k))

    def test_top_p(self, seed, temperature):
        logits = random_logits(seed)
        for p in (1e-6, 0.1, 0.5, 0.9, 0.999):
            ours = prepare(logits, SamplingParams(temperature=temperature, top_p=p))
            warpers = reference.TemperatureLogitsWarper(temperature), reference.TopPLogitsWarper(p)
            assert survivors(ours) == reference_survivors(logits, *warpers)

    def test_min_p(self, seed, temperature):
        logits = random_logits(seed)
        for p in (1e-30, 1e-3, 0.05, 0.5, 1.0):
            ours = prepare(logits, SamplingParams(temperature=temperature, min_p=p))
            warpers = reference.TemperatureLogitsWarper(temperature), reference.MinPLogitsWarper(p)
            assert survivors(ours) == reference_survivors(logits, *warpers)

    def test_all_together(self, seed, temperature):
        logits = random_logits(seed)
        for k, p, least in ((40, 0.9, 0.02), (400, 0.99, 0.001), (5, 0.5, 0.3)):
            ours = prepare(logits, SamplingParams(temperature=temperature, top_k=k, top_p=p, min_p=least))
            warpers = (
                reference.TemperatureLogitsWarper(temperature),
                reference.TopKLogitsWarper(k),
                reference.TopPLogitsWarper(p),
                reference.MinPLogitsWarper(least),
            )
            assert survivors(ours) == reference_survivors(logits, *warpers)


def test_repetition_penalty_equals_transformers():
    logits, prompt, output = random_logits(0), [1, 5, 5, 9], [7, 5, 400]
    history = TokenHistory(prompt)
    for token in output:
        history.add(token)
    for penalty in (0.7, 1.0, 1.3):
        ours = prepare(logits, SamplingParams(temperature=0.0, repetition_penalty=penalty), history).logits
        ids = torch.tensor([prompt + output])
        theirs = reference.RepetitionPenaltyLogitsProcessor(penalty)(ids, torch.from_numpy(logits)[None].clone())
        assert ours.tolist() == theirs[0].tolist()


def test_presence_and_frequency_look_at_the_output_only():
    history = TokenHistory([0, 1])
    for token in (1, 2, 2, 2):
        history.add(token)
    params = SamplingParams(temperature=0.0, presence_penalty=0.5, frequency_penalty=0.25)
    logits = prepare(np.zeros(4, np.float32), params, history).logits
    assert logits.tolist() == [0.0, -0.75, -1.25, 0.0]


def test_bias_comes_after_penalties_and_the_mask_after_bias():
    history = TokenHistory([1])
    params = SamplingParams(temperature=0.0, repetition_penalty=2.0, logit_bias={1: 3.0, 2: 100.0}, min_tokens=1)
    logits = prepare(np.array([0, 4, 1, 1], np.float32), params, history, endings=(2, 77)).logits
    assert logits.tolist() == [0.0, 5.0, -np.inf, 1.0]


@pytest.mark.parametrize("seed", range(4))
def test_bad_words_equal_transformers(seed):
    random = np.random.default_rng(seed)
    words = [random.integers(0, 6, length).tolist() for length in (1, 2, 2, 3, 4, 4)]
    words = [word for word in words if word != [0]]
    theirs = reference.NoBadWordsLogitsProcessor(words)
    output, state = [], BadWords(words)
    for _ in range(60):
        logits = random_logits(seed)
        expected = theirs(torch.tensor([output], dtype=torch.long), torch.from_numpy(logits)[None].clone())[0]
        found = Candidates(logits.copy())
        for step in editing_steps(SamplingParams(bad_words_ids=words), None, (), state):
            step.apply(found)
        assert found.logits.tolist() == expected.tolist()
        output.append(int(random.integers(0, 6)))
        state.add(output[-1])


def test_only_allowed_tokens_stay_whatever_their_logits():
    params = SamplingParams(temperature=0.0, allowed_token_ids=[3, 1, 3, 99], logit_bias={1: -2.0, 2: 100.0})
    logits = prepare(np.array([5, 1, 1, 0.5], np.float32), params).logits
    assert logits.tolist() == [-np.inf, -1.0, -np.inf, 0.5]


def test_rows_share_the_words_that_must_not_come():
    words = tuple((index,) * 1000 for index in range(500))
    tracemalloc.start()
    try:
        rows = [BadWords(words) for _ in range(8)]
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # A copy has 4 MB.
    assert len(rows) == 8 and most < 4_000_000


def test_a_word_beyond_the_vocabulary_is_never_chosen_anyhow():
    params = SamplingParams(temperature=0.0, bad_words_ids=[[7], [1]])
    logits = prepare(np.zeros(3, np.float32), params, words=BadWords(params.bad_words_ids)).logits
    assert logits.tolist() == [0.0, -np.inf, 0.0]


def test_bias_beyond_the_vocabulary_fails_with_the_numbers():
    with pytest.raises(RowFailed, match=r"token 500, but the model's ids are 0\.\.499"):
        prepare(random_logits(0), SamplingParams(logit_bias={500: 1.0}))


@given(hnp.arrays(np.float32, st.integers(1, 60), elements=st.integers(-4, 4)), st.integers(1, 70))
def test_equal_logits_rank_by_id(logits, count):
    order = sorted(range(logits.size), key=lambda token: (-logits[token], token))
    kept = best(logits, count)
    assert kept.tolist() == sorted(order[:count])
    assert ranked(logits, kept).tolist() == order[:count]
    fewer = max(1, count // 2)
    assert best(logits, fewer, kept).tolist() == sorted(order[:count][:fewer])


@given(
    hnp.arrays(np.float32, st.integers(1, 80), elements=st.integers(-50, 50).map(lambda value: value / 4)),
    st.floats(0.0, 1.0, exclude_min=True),
    st.sampled_from([5e-324, 0.1, 1.0, 2.0, 100.0]),
)
def test_top_p_is_the_shortest_prefix_that_reaches_p(logits, p, temperature):
    order = sorted(range(logits.size), key=lambda token: (-logits[token], token))
    with np.errstate(over="ignore"):
        weights = np.exp((logits[order].astype(float) - float(logits.max())) / temperature)
    kept, total, reached = [], float(np.cumsum(weights)[-1]), 0.0
    for token, weight in zip(order, weights.tolist(), strict=True):
        if kept and reached >= p * total:
            break
        kept.append(token)
        reached += weight
    ours = prepare(logits, SamplingParams(temperature=temperature, top_p=p))
    assert survivors(ours) == (set(kept) if p < 1.0 else set(order))


@given(
    hnp.arrays(np.float32, st.integers(2, 300), elements=st.floats(-20, 20, width=32)),
    st.floats(0.001, 0.999),
    st.floats(0.0, 1.0),
    st.sampled_from([1e-40, 0.2, 1.0, 5.0]),
)
def test_what_is_surely_kept_survives(logits, top_p, min_p, temperature):
    params = SamplingParams(temperature=temperature, top_p=top_p, min_p=min_p)
    kept = survivors(prepare(logits, params))
    whole = Candidates(logits, float(logits.max()), temperature)
    narrowing = narrowing_of(params)
    for token in range(logits.size):
        assert token in kept or not all(step.surely_keeps(whole, token) for step in narrowing)


def test_what_is_not_asked_for_is_no_step():
    assert editing_steps(SamplingParams(), None, ()) == ()
    assert narrowing_of(SamplingParams(top_k=-1)) == ()


def test_the_least_min_p_keeps_what_it_should():
    # Its logarithm would be that of a number with fewer bits, for which it is not made.
    for min_p in (5e-324, 1e-310):
        log_min_p = constants_of(SamplingParams(min_p=min_p), 0)[3]
        assert -709 < log_min_p < -708


def test_presence_alone():
    history = TokenHistory()
    history.add(3)
    history.add(3)
    found = prepare(np.zeros(8, np.float32), SamplingParams(temperature=0.0, presence_penalty=0.5), history)
    assert found.logits.tolist() == [0, 0, 0, -0.5, 0, 0, 0, 0]


def test_the_token_that_brings_the_sum_to_p_is_the_last():
    found = prepare(np.array([0.0, 1.0, 1.0, 1.0, 1.0], np.float32), SamplingParams(top_k=4, top_p=0.5))
    assert found.ids.tolist() == [1, 2]
