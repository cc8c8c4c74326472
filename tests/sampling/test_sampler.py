import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core.errors import RowFailed
from penstock.sampling.draw import perturbed
from penstock.sampling.noise import Purpose, position_key
from penstock.sampling.pipeline import Candidates, narrowing_steps
from penstock.sampling.sampler import Sampler
from support.endings import finish_of
from support.sampling_rows import EOS, chi_square, make_row, make_samples

pytestmark = pytest.mark.usefixtures("implementation")

VOCABULARY = 1200
MIXED = (
    {},
    {"temperature": 0.0},
    {"temperature": 0.7, "top_p": 0.9},
    {"top_k": 20, "top_p": 0.8, "min_p": 0.01},
    {"temperature": 1.3, "min_p": 0.1, "logprobs": 4},
    {"repetition_penalty": 1.3, "presence_penalty": 0.4, "frequency_penalty": 0.2},
    {"temperature": 0.0, "logit_bias": {5: 3.0, 6: -100.0}, "min_tokens": 3, "logprobs": 0},
    {"allowed_token_ids": [*range(3, 40)], "bad_words_ids": [[5], [7, 8]], "logprobs": 2},
)


def logits_of(step, count, spread=2.0):
    generator = torch.Generator().manual_seed(step)
    return (torch.randn(count, VOCABULARY, generator=generator) * spread).bfloat16()


def generate(rows, logits_steps, order=None):
    """The results of every row over several steps, `order` being the rows' order in the batch."""
    order = list(range(len(rows))) if order is None else order
    sampler, outputs = Sampler(VOCABULARY), [[] for _ in rows]
    for logits in logits_steps:
        results = sampler.sample(logits[order], [rows[i] for i in order], range(len(order)))
        for position, result in zip(order, results, strict=True):
            outputs[position].append(result)
    return outputs


@pytest.mark.parametrize("count", [1, 2, 7, 16])
def test_a_row_depends_on_no_other_row(count):
    steps = [logits_of(step, count) for step in range(5)]
    params = [{**MIXED[i % len(MIXED)], "seed": i} for i in range(count)]
    together = generate([make_row(i, **params[i]) for i in range(count)], steps)
    backwards = generate([make_row(i, **params[i]) for i in range(count)], steps, list(range(count))[::-1])
    assert together == backwards
    for i in range(count):
        alone = generate([make_row(i, **params[i])], [logits[i : i + 1] for logits in steps])
        assert alone[0] == together[i]
        # Other rows of the batch are greedy, unseeded or broken; the row under test does not notice.
        others = [make_row(9, temperature=0.0), make_row(8, seed=12345)]
        broken = [
            torch.cat([torch.full((1, VOCABULARY), float("nan")).bfloat16(), x[i : i + 1], x[i : i + 1]]) for x in steps
        ]
        assert generate([others[0], make_row(i, **params[i]), others[1]], broken)[1] == together[i]


def test_dtypes_and_views_give_the_same_tokens():
    logits = logits_of(0, 4)
    expected = Sampler(VOCABULARY).sample(logits, [make_row(i, seed=i) for i in range(4)], range(4))
    wide = torch.cat([logits.float(), logits.float()], dim=1)[:, :VOCABULARY]
    assert not wide.is_contiguous()
    for variant in (logits.float(), wide):
        assert Sampler(VOCABULARY).sample(variant, [make_row(i, seed=i) for i in range(4)], range(4)) == expected


@pytest.mark.one_in(3)
@pytest.mark.parametrize("spread", [0.3, 2.0])
@pytest.mark.parametrize("top_k", [0, 3, 40])
@pytest.mark.parametrize("top_p", [0.3, 0.9, 1.0])
@pytest.mark.parametrize("min_p", [0.0, 0.2])
def test_a_sample_is_the_largest_perturbed_value_of_the_survivors(spread, top_k, top_p, min_p):
    logits = logits_of(7, 20, spread)
    params = {"top_k": top_k, "top_p": top_p, "min_p": min_p, "temperature": 0.8}
    rows = [make_row(i, seed=i, **params) for i in range(20)]
    expected = []
    for row, values in zip(rows, logits.float().numpy(), strict=True):
        candidates = Candidates(values, float(values.max()))
        choice = row.choice(0)
        for step in narrowing_steps(choice):
            step.apply(candidates)
        ids = np.arange(VOCABULARY) if candidates.ids is None else candidates.ids
        key = position_key(choice.seed, 0, Purpose.TOKEN, 0)
        expected.append([int(ids[perturbed(values, candidates.peak, 0.8, ids, key).argmax()])])
    results = Sampler(VOCABULARY).sample(logits, rows, range(20))
    assert [result.tokens for result in results] == expected


def test_greedy_takes_the_first_of_equal_logits():
    logits = torch.zeros(2, VOCABULARY)
    logits[1, [700, 30, 31]] = 5.0
    results = Sampler(VOCABULARY).sample(logits, [make_row(i, temperature=0.0) for i in range(2)], [0, 1])
    assert [result.tokens for result in results] == [[0], [30]]


def test_logits_are_not_written_to():
    logits = logits_of(3, 2).float()
    before = logits.clone()
    rows = [make_row(0, repetition_penalty=2.0, logprobs=3), make_row(1, logit_bias={3: 50.0}, top_p=0.5)]
    Sampler(VOCABULARY).sample(logits, rows, [0, 1])
    assert torch.equal(logits, before)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("params", [{"temperature": 0.0}, {"top_p": 0.9}, {"repetition_penalty": 1.5, "logprobs": 2}])
def test_broken_logits_fail_their_row_only(value, params):
    logits = logits_of(1, 3)
    healthy = generate([make_row(i, seed=i, **params) for i in range(3)], [logits])
    logits[1, 77] = value
    rows = [make_row(i, seed=i, **params) for i in range(3)]
    results = Sampler(VOCABULARY).sample(logits, rows, range(3))
    assert results[0] == healthy[0][0]
    assert results[2] == healthy[2][0]
    assert (finish_of(results[1]), results[1].tokens, rows[1].position) == ("error", [], 0)
    assert results[1].ending.error.startswith("The model computed")


def test_a_row_with_nothing_left_to_choose_fails():
    logits = torch.full((2, VOCABULARY), -float("inf"))
    logits[1, EOS] = 1.0
    results = Sampler(VOCABULARY).sample(logits, [make_row(0), make_row(1, min_tokens=1)], [0, 1])
    assert [finish_of(result) for result in results] == ["error", "error"]
    assert results[0].ending.error != results[1].ending.error


def test_samples_of_one_prompt_share_logits_differ_and_repeat():
    logits = logits_of(2, 1)

    def eight():
        rows = make_samples(8, seed=5)
        return [result.tokens[0] for result in Sampler(VOCABULARY).sample(logits, rows, [0] * 8)]

    tokens = eight()
    assert len(set(tokens)) >= 4
    assert tokens == eight()


def test_samples_are_distributed_as_the_softmax():
    logits = torch.full((1, VOCABULARY), -float("inf"))
    logits[0, :4] = torch.tensor([1.0, 0.0, 2.0, 0.5])
    sampler, counts = Sampler(VOCABULARY), [0] * 4
    rows = make_samples(100, seed=8)
    for _ in range(60):
        for result in sampler.sample(logits, rows, [0] * 100):
            counts[result.tokens[0]] += 1
    assert abs(chi_square(counts, logits[0, :4].softmax(0).tolist())) < 5


def test_top_p_samples_are_distributed_as_the_renormalised_nucleus():
    logits = torch.log(torch.tensor([0.4, 0.05, 0.3, 0.05, 0.2]))[None]
    sampler, counts = Sampler(5), [0] * 5
    rows = make_samples(100, seed=8, top_p=0.85)
    for _ in range(60):
        for result in sampler.sample(logits, rows, [0] * 100):
            counts[result.tokens[0]] += 1
    assert abs(chi_square(counts, [4 / 9, 0, 3 / 9, 0, 2 / 9])) < 5


def test_min_tokens_keeps_the_row_going_and_stop_tokens_end_it():
    logits = torch.zeros(1, VOCABULARY)
    logits[0, EOS], logits[0, 9], logits[0, 4] = 9.0, 8.0, 1.0
    row = make_row(temperature=0.0, min_tokens=2, stop_token_ids=(9,))
    results = [Sampler(VOCABULARY).sample(logits, [row], [0])[0] for _ in range(3)]
    assert [result.tokens for result in results] == [[4], [4], [EOS]]
    assert [finish_of(result) for result in results] == [None, None, "stop"]
    row = make_row(temperature=0.0, stop_token_ids=(9,), logit_bias={EOS: -100.0})
    result = Sampler(VOCABULARY).sample(logits, [row], [0])[0]
    assert (result.tokens, finish_of(result), result.ending.stop_reason) == ([9], "stop", 9)


@settings(max_examples=25)
@given(st.integers(0, 2**32), st.integers(0, 20), st.sampled_from([0.0, 0.5, 2.0]))
def test_logprobs_equal_log_softmax_whatever_the_temperature(seed, top, temperature):
    logits = logits_of(seed, 1, spread=4.0)
    row = make_row(seed=seed, logprobs=top, temperature=temperature, top_k=3)
    (result,) = Sampler(VOCABULARY).sample(logits, [row], [0])
    (found,) = result.logprobs
    reference = logits[0].double().log_softmax(0)
    assert found.token == result.tokens[0]
    assert found.logprob == pytest.approx(float(reference[found.token]), abs=2e-6)
    order = sorted(range(VOCABULARY), key=lambda token: (-float(logits[0, token]), token))
    assert found.top_tokens == order[:top]
    np.testing.assert_allclose(found.top_logprobs, reference[found.top_tokens], atol=2e-6)


def test_only_allowed_tokens_come_and_no_bad_words():
    """What the steps leave is what is drawn, whatever narrows it further."""
    allowed, words = (4, 6, 7, 8), [[6], [7, 8], [8, 7, 7]]
    row = make_row(temperature=1.5, top_p=0.95, allowed_token_ids=allowed, bad_words_ids=words)
    sampler, tokens = Sampler(VOCABULARY), []
    for step in range(300):
        (result,) = sampler.sample(logits_of(step, 1), [row], [0])
        tokens += result.tokens
    assert set(tokens) == {4, 7, 8}
    text = " ".join(map(str, tokens))
    assert "7 8" not in text and "8 7 7" not in text and "8 7 4" in text and "4 7 7" in text


def test_where_nothing_is_left_the_message_says_what_took_it():
    row = make_row(allowed_token_ids=(4, 5), bad_words_ids=[[4], [5, 5]])
    first, second = (Sampler(VOCABULARY).sample(logits_of(0, 1), [row], [0])[0] for _ in range(2))
    assert first.tokens == [5] and (finish_of(second), second.ending.code) == ("error", "nothing_fits")
    assert "allowed_token_ids, bad_words" in second.ending.error


def test_logprobs_come_after_penalties_bias_and_masks():
    logits = logits_of(0, 1)
    row = make_row(
        temperature=0.0, prompt=(1,), repetition_penalty=1.5, logit_bias={7: 20.0}, min_tokens=1, logprobs=20
    )
    edited = logits[0].float().clone()
    edited[1] = edited[1] * 1.5 if edited[1] < 0 else edited[1] / 1.5
    edited[7] += 20.0
    edited[EOS] = -float("inf")
    (result,) = Sampler(VOCABULARY).sample(logits, [row], [0])
    reference = edited.double().log_softmax(0)
    assert result.tokens == [7]
    np.testing.assert_allclose(result.logprobs[0].top_logprobs, reference.topk(20).values, atol=2e-6)


def test_masked_tokens_are_not_listed_among_the_likely():
    logits = torch.full((1, VOCABULARY), -float("inf"))
    logits[0, 3] = logits[0, 8] = 0.5
    (result,) = Sampler(VOCABULARY).sample(logits, [make_row(temperature=0.0, logprobs=5)], [0])
    assert result.logprobs[0].top_tokens == [3, 8]
    np.testing.assert_allclose(result.logprobs[0].top_logprobs, [-np.log(2)] * 2, atol=1e-6)


@settings(max_examples=25)
@given(st.integers(0, 2**32), st.integers(0, 20), st.sampled_from([0.3, 4.0]), st.data())
def test_given_tokens_are_scored_by_the_models_own_distribution(seed, top, spread, data):
    logits = logits_of(seed, 5, spread)
    # A small spread in bfloat16 has many ties.
    tokens = data.draw(st.lists(st.integers(0, VOCABULARY - 1), min_size=5, max_size=5))
    tokens[0] = int(logits[0].argmax())
    scores = Sampler(VOCABULARY).score(logits, tokens, top)
    reference = logits.double().log_softmax(1)
    for row, (token, found) in enumerate(zip(tokens, scores, strict=True)):
        order = sorted(range(VOCABULARY), key=lambda other, row=row: (-float(logits[row, other]), other))
        assert found.token == token
        assert found.rank == order.index(token) + 1
        assert found.logprob == pytest.approx(float(reference[row, token]), abs=2e-6)
        assert found.top_tokens == order[:top]
        np.testing.assert_allclose(found.top_logprobs, reference[row, found.top_tokens], atol=2e-6)
        # Whoever compares it with the largest must find the same bits.
        if top and float(logits[row, token]) == float(logits[row].max()):
            assert found.logprob == found.top_logprobs[0]


def test_scores_do_not_depend_on_the_rows_beside_them():
    logits = logits_of(4, 6)
    together = Sampler(VOCABULARY).score(logits, [5, 6, 7, 8, 9, 10], 3)
    for row in range(6):
        assert Sampler(VOCABULARY).score(logits[row : row + 1], [5 + row], 3) == together[row : row + 1]


def test_broken_logits_cannot_be_scored():
    logits = logits_of(4, 3)
    logits[1, 5] = float("nan")
    with pytest.raises(RowFailed, match="NaN"):
        Sampler(VOCABULARY).score(logits, [1, 2, 3], 0)
    logits[1] = -float("inf")
    logits[1, 7] = 0.0
    scores = Sampler(VOCABULARY).score(logits, [1, 2, 3], 2)
    assert (scores[1].logprob, scores[1].top_tokens, scores[1].rank) == (-float("inf"), [7], 4)
