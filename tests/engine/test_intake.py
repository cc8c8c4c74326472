"""What the intake refuses before anything reaches the engine."""

import math
from typing import Any

import pytest

from penstock.core.errors import ContextLengthExceeded, InvalidParameter
from penstock.core.kv import LayerKV, build_kv_spec
from penstock.core.kv_policy import LONGEST_STREAM, POLICY_KINDS, KVPolicy, PolicyLimits
from penstock.core.request import KeptPrefix, Standing
from penstock.core.sampling import ReasoningBudget, SamplingParams
from penstock.core.sourced import Sourced
from penstock.engine.intake import Intake
from penstock.scheduler.admission import Limits


def make_intake(*, has_text: bool) -> Intake:
    spec = build_kv_spec((LayerKV(1, 4),), "float32", 16)
    limits = Limits(max_model_len=64, num_blocks=8, max_chunk=64, spec=spec)
    return Intake(limits, 100, (2,), has_text=has_text)


def bounded_intake(max_model_len: int = 64) -> Intake:
    spec = build_kv_spec((LayerKV(1, 4),), "float32", 16)
    limits = Limits(spec, 16, max_model_len, 64, PolicyLimits(POLICY_KINDS, ""))
    return Intake(limits, 100, (2,), has_text=True)


@pytest.fixture
def intake() -> Intake:
    return make_intake(has_text=True)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("priority", True),
        ("priority", 1.5),
        ("priority", "high"),
        ("priority", None),
        ("priority", 2**63),
        ("priority", -(2**63) - 1),
        ("weight", 0.0),
        ("weight", -1.0),
        ("weight", math.nan),
        ("weight", math.inf),
        ("weight", "heavy"),
        ("weight", 0.0009),
        ("weight", 1000.1),
        ("tenant", None),
        ("tenant", "x" * 257),
        ("tenant", "\ud800"),
        ("cache_salt", 5),
        ("cache_salt", None),
        ("cache_salt", b"salt"),
        ("cache_salt", "x" * 257),
        ("cache_salt", "\ud800"),
    ],
)
def test_a_value_that_is_not_accepted_is_refused_by_name(intake: Intake, name: str, value: object) -> None:
    fields: dict[str, Any] = {"priority": 0, "cache_salt": "", name: value}
    with pytest.raises(InvalidParameter) as caught:
        intake.request([5], SamplingParams(max_tokens=1), Standing(**fields))
    assert caught.value.param == name


@pytest.mark.parametrize(("priority", "salt"), [(2**63 - 1, "x" * 256), (-(2**63), "")])
def test_bounds_are_inclusive(intake: Intake, priority: int, salt: str) -> None:
    request = intake.request([5], SamplingParams(max_tokens=1), Standing(priority=priority, cache_salt=salt))
    assert (request.standing.priority, request.standing.cache_salt) == (priority, salt)


@pytest.mark.parametrize(
    ("has_text", "closing", "param"),
    [(True, 99, None), (True, 100, "reasoning_budget.closing"), (False, 99, "reasoning_budget")],
)
def test_budgets_of_reasoning_need_text_and_tokens_of_the_vocabulary(
    has_text: bool, closing: int, param: str | None
) -> None:
    params = SamplingParams(max_tokens=1, reasoning_budget=ReasoningBudget(tokens=5, closing=(closing,)))
    if param is None:
        make_intake(has_text=has_text).request([5], params)
        return
    with pytest.raises(InvalidParameter) as caught:
        make_intake(has_text=has_text).request([5], params)
    assert caught.value.param == param


BUDGET = ReasoningBudget(tokens=4, closing=(7, 8, 9))


@pytest.mark.parametrize(
    ("params", "name"),
    [
        ({"bad_words": ("fox",)}, "bad_words"),
        ({"bad_words_ids": ((5, 100),)}, "bad_words"),
        ({"allowed_token_ids": (100,)}, "allowed_token_ids"),
        # Nothing could ever be chosen.
        ({"allowed_token_ids": (5, 6), "bad_words_ids": ((5,), (6,), (7,))}, "allowed_token_ids"),
        ({"allowed_token_ids": (2, 9), "stop_token_ids": (9,), "min_tokens": 1}, "allowed_token_ids"),
        # What ends a reasoning that is too long must be allowed.
        ({"allowed_token_ids": (7, 8), "reasoning_budget": BUDGET}, "allowed_token_ids"),
        ({"bad_words_ids": ((8, 9),), "reasoning_budget": BUDGET}, "bad_words"),
    ],
)
def test_what_leaves_no_token_to_choose_is_refused(intake: Intake, params: dict[str, Any], name: str) -> None:
    with pytest.raises(InvalidParameter) as caught:
        intake.request([5], SamplingParams(max_tokens=4, **params))
    assert caught.value.param == name


@pytest.mark.parametrize(
    "params",
    [
        {"allowed_token_ids": (5, 6), "bad_words_ids": ((5,), (6, 6))},
        {"allowed_token_ids": (2, 9), "min_tokens": 1},
        {"allowed_token_ids": (7, 8, 9), "bad_words_ids": ((9, 8),), "reasoning_budget": BUDGET},
    ],
)
def test_what_leaves_one_is_accepted(intake: Intake, params: dict[str, Any]) -> None:
    intake.request([5], SamplingParams(max_tokens=4, **params))


@pytest.mark.parametrize(
    ("output", "params", "message"),
    [
        ((5, 100), {}, "token id 100 is outside this model's vocabulary"),
        ((5,), {"n": 2}, "only one sample"),
        ((5,), {"seed": None}, "with a seed"),
        ((5,), {"prompt_logprobs": 0}, "no scores of its prompt"),
        ((5, 6, 7), {"max_tokens": 3}, "it has 3 tokens of at most 3, so that none can follow"),
    ],
)
def test_an_output_that_none_can_go_on_with(
    intake: Intake, output: tuple[int, ...], params: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidParameter) as caught:
        intake.request([1], SamplingParams(**{"seed": 1, "max_tokens": 9, **params}), output=output)
    assert message in caught.value.message


@pytest.mark.parametrize(("given", "kept"), [(0, 0), (3, 0), (4, 0), (5, 1), (8, 4)])
def test_the_last_tokens_of_a_begun_output_are_generated_again(intake: Intake, given: int, kept: int) -> None:
    output = tuple(range(10, 10 + given))
    request = intake.request([1], SamplingParams(seed=1, max_tokens=9), output=output)
    assert request.output == output[:kept]


WINDOW = KVPolicy(kind="window", tokens=64)


def test_a_policy_goes_with_its_request() -> None:
    request = bounded_intake().request([5], SamplingParams(max_tokens=1), kv_policy=WINDOW)
    assert request.kv_policy == WINDOW


def test_a_window_ends_with_no_context() -> None:
    intake = bounded_intake()
    long = intake.request([5] * 1000, SamplingParams(max_tokens=5000), kv_policy=WINDOW)
    assert long.max_tokens == 5000
    # Without a number, as many as a context has.
    assert intake.request([5] * 1000, SamplingParams(max_tokens=None), kv_policy=WINDOW).max_tokens == 64
    with pytest.raises(ContextLengthExceeded, match=str(LONGEST_STREAM)):
        intake.request([5], SamplingParams(max_tokens=LONGEST_STREAM), kv_policy=WINDOW)
    with pytest.raises(ContextLengthExceeded, match="context is 64 tokens"):
        weighed = KVPolicy(kind="h2o", tokens=64, recent=16)
        intake.request([5] * 60, SamplingParams(max_tokens=5), kv_policy=weighed)


@pytest.mark.parametrize(
    ("params", "further", "says"),
    [
        ({"n": 2}, {}, "one sample, and n is 2"),
        ({}, {"keep": (KeptPrefix(1, 5.0),)}, "no prefix that is kept"),
        ({"seed": 1}, {"output": (5,)}, "no output that another engine has begun"),
    ],
)
def test_what_needs_a_whole_context_goes_with_no_policy(
    params: dict[str, Any], further: dict[str, Any], says: str
) -> None:
    intake = bounded_intake()
    sampling = SamplingParams(max_tokens=8, **params)
    assert intake.request([5], sampling, **further).kv_policy is None
    with pytest.raises(InvalidParameter) as caught:
        intake.request([5], sampling, kv_policy=WINDOW, **further)
    assert caught.value.param == "kv_policy" and says in caught.value.message
    assert caught.value.message.endswith('leave one of them out, or ask for "full".')


def test_an_engine_that_drops_nothing_refuses_policies(intake: Intake) -> None:
    with pytest.raises(InvalidParameter, match="window is not possible here: this engine drops nothing; leave it out"):
        intake.request([5], SamplingParams(max_tokens=1), kv_policy=WINDOW)


class TestSources:
    """Requests of an encoder–decoder."""

    @pytest.fixture
    def sourced(self) -> Intake:
        spec = build_kv_spec((LayerKV(1, 4), LayerKV(1, 4, source=True)), "float32", 16)
        limits = Limits(spec, 16, 64, 64, max_source=32)
        return Intake(limits, 100, (2,), has_text=True, sourced=Sourced(32, 3, 4, never=((9,),)))

    def test_a_prompt_is_the_source(self, sourced: Intake) -> None:
        request = sourced.request([5, 6, 7], SamplingParams(bad_words_ids=((8, 8),)))
        assert (request.source, request.prompt_token_ids, request.given) == ((5, 6, 7), [3, 4], (5, 6, 7))
        assert request.max_tokens == 62 and request.sampling.bad_words_ids == ((8, 8), (9,))
        assert sourced.request([5], SamplingParams(), forced_bos=50).prompt_token_ids == [3, 50]

    def test_an_output_that_was_begun_elsewhere_goes_on(self, sourced: Intake) -> None:
        request = sourced.request([5], SamplingParams(seed=1, max_tokens=20), output=(10, 11, 12, 13, 14, 15))
        assert (request.source, request.output) == ((5,), (10, 11))

    def test_what_is_refused(self, sourced: Intake, intake: Intake) -> None:
        for asking, message in (
            (lambda: sourced.request([], SamplingParams()), "at least one token"),
            (
                lambda: sourced.request([5], SamplingParams(), forced_bos=100),
                "forced_bos_token: token id 100 is outside",
            ),
            (lambda: sourced.request([5], SamplingParams(prompt_logprobs=0)), "prompt_logprobs: an encoder–decoder"),
            (lambda: sourced.embedding([5], "mean"), "makes no vectors"),
            (lambda: intake.request([5], SamplingParams(), forced_bos=5), "this model has no encoder"),
        ):
            with pytest.raises(InvalidParameter, match=message):
                asking()
        with pytest.raises(ContextLengthExceeded, match="33 tokens, and this model's encoder reads at most 32"):
            sourced.request([5] * 33, SamplingParams())
