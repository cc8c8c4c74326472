"""Policies for contexts: how they are written, and which cannot be followed."""

import json
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.errors import ConfigurationError, InvalidParameter
from penstock.core.kv_policy import (
    LONGEST_STREAM,
    POLICY_KINDS,
    PROTECTIONS,
    WEIGHED,
    AskedPolicy,
    KVPolicy,
    PolicyLimits,
    asked_policy,
    check_policy,
    policy_option,
)

ALL = PolicyLimits(POLICY_KINDS, "")
BLOCK, CONTEXT = 16, 4096


@dataclass(frozen=True)
class Refused:
    """A policy that cannot be, the field that is at fault, and a part of what is said."""

    policy: dict[str, Any]
    field: str
    says: str


@pytest.mark.parametrize(
    ("text", "policy"),
    [
        ("window:2048", KVPolicy(kind="window", tokens=2048)),
        (" h2o:2048 , sinks = 64,recent=256", KVPolicy(kind="h2o", tokens=2048, sinks=64, recent=256)),
        ("scissorhands:512,patience=7", KVPolicy(kind="scissorhands", tokens=512, patience=7)),
        ("snapkv,tokens=512,recent=32", KVPolicy(kind="snapkv", tokens=512, recent=32)),
        (' {"type": "h2o", "tokens": 2048, "sinks": 0}', KVPolicy(kind="h2o", tokens=2048, sinks=0)),
    ],
)
def test_a_text_is_a_policy(text: str, policy: KVPolicy) -> None:
    assert policy_option(text) == AskedPolicy(policy=policy, protect="system")


def test_what_else_an_option_may_be() -> None:
    policy = KVPolicy(kind="h2o", tokens=2048)
    asked = AskedPolicy(policy=policy, protect="none")
    assert policy_option(None) is None and policy_option("full") is None
    assert policy_option(asked) is asked
    assert policy_option(policy) == AskedPolicy(policy=policy)
    assert policy_option({"type": "h2o", "tokens": 2048, "protect": "none"}) == asked
    assert policy_option("h2o:2048,protect=none") == asked


@st.composite
def policies(draw: st.DrawFn) -> AskedPolicy:
    kind = draw(st.sampled_from(POLICY_KINDS))
    numbers = {name: draw(st.integers(1, 2**31 - 1)) for name in ("tokens", "sinks")}
    if kind in WEIGHED:
        numbers["recent"] = draw(st.integers(1, 2**31 - 1))
    if kind == "scissorhands":
        numbers["patience"] = draw(st.integers(1, 2**31 - 1))
    return AskedPolicy(policy=KVPolicy(kind=kind, **numbers), protect=draw(st.sampled_from(PROTECTIONS)))


@given(policies())
def test_a_policy_is_told_as_it_can_be_asked_for(asked: AskedPolicy) -> None:
    assert policy_option(str(asked)) == asked


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "is no policy; write one like window:2048"),
        ("window", "is no policy"),
        ("window:", "is no policy"),
        ("window:2048,", "is no policy"),
        ("window:2048;sinks=4", "is no policy"),
        ("windows:2048", "type: 'windows' is not one of window, h2o"),
        ("window:many", "tokens: must be an integer, not 'many'"),
        ("window:2048,sink=4", "sink: is not a field of it; there are type, tokens, sinks"),
        ("window:2048,recent=64", "recent: means nothing for window, but for h2o and scissorhands and snapkv"),
        ("window:2048,protect=all", "protect: 'all' is not one of system, none"),
        ("h2o:99999999999", "tokens: must be an integer"),
        ("h2o:3000000000", "tokens: 3000000000 is outside 1..2147483647"),
        ('{"type": "h2o"', "is not JSON"),
        ('{"type": "h2o"}', "tokens: is missing"),
        ('{"tokens": 5}', "type: is missing"),
        ('{"type": ["h2o"], "tokens": 5}', "is not one of"),
    ],
)
def test_a_text_that_is_none_is_refused_in_a_sentence(text: str, says: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        policy_option(text)
    assert caught.value.message.startswith("--kv-policy") and says in caught.value.message


@pytest.mark.parametrize(
    "refused",
    [
        Refused({"type": "h2o", "tokens": True}, "tokens", "must be an integer"),
        Refused({"type": "h2o", "tokens": 512.0}, "tokens", "must be an integer"),
        Refused({"type": "h2o", "tokens": 512, "sinks": -1}, "sinks", "-1 is outside 0.."),
        Refused({"type": "h2o", "tokens": 512, "recent": 0}, "recent", "0 is outside 1.."),
        Refused({"type": "h2o", "tokens": 512, "patience": 5}, "patience", "means nothing for h2o"),
        Refused({"type": "h2o", "tokens": 512, "window": 5}, "window", "is not a field of it"),
        Refused({"type": "h2o", "tokens": 512, "protect": None}, "protect", "is not one of"),
    ],
)
def test_an_object_that_is_none_is_refused_by_name(refused: Refused) -> None:
    with pytest.raises(InvalidParameter) as caught:
        asked_policy(refused.policy)
    assert caught.value.param == f"kv_policy.{refused.field}" and refused.says in caught.value.message


@pytest.mark.parametrize(
    "policy",
    [
        KVPolicy(kind="window", tokens=48, sinks=16),
        KVPolicy(kind="window", tokens=32, sinks=0),
        KVPolicy(kind="h2o", tokens=64, sinks=16, recent=16),
        KVPolicy(kind="snapkv", tokens=CONTEXT),
        KVPolicy(kind="scissorhands", tokens=176, patience=1),
    ],
)
def test_what_just_fits_is_accepted(policy: KVPolicy) -> None:
    check_policy(policy, ALL, BLOCK, CONTEXT)


@pytest.mark.parametrize(
    "refused",
    [
        Refused({"kind": "window", "tokens": 8}, "tokens", "8 tokens are less than a KV block, which has 16"),
        Refused({"kind": "window", "tokens": 64, "sinks": 64}, "sinks", "64 sinks, which are never dropped, leave"),
        Refused({"kind": "window", "tokens": 47}, "tokens", "47 tokens cannot hold 16 sinks and two KV blocks of 16"),
        Refused({"kind": "window", "tokens": 63, "sinks": 17}, "tokens", "give at least 64"),
        Refused({"kind": "h2o", "tokens": 175}, "tokens", "16 sinks, 128 recent tokens and two KV blocks of 16"),
        Refused({"kind": "h2o", "tokens": 175}, "tokens", "give at least 176, or lower the others"),
        Refused({"kind": "h2o", "tokens": 175, "recent": 15}, "recent", "15 is less than a KV block; give at least 16"),
        Refused({"kind": "h2o", "tokens": CONTEXT + 1}, "tokens", "more than this server's context of 4096"),
        Refused({"kind": "h2o", "tokens": "512"}, "tokens", "must be an integer"),
        Refused({"kind": "h2o", "tokens": 512, "sinks": -1}, "sinks", "outside 0.."),
        Refused({"kind": "scissorhands", "tokens": 512, "patience": 0}, "patience", "outside 1.."),
        Refused({"kind": "fifo", "tokens": 512}, "type", "'fifo' is not one of window"),
    ],
)  # fmt: skip
def test_what_cannot_be_followed_is_refused_with_what_would_work(refused: Refused) -> None:
    with pytest.raises(InvalidParameter) as caught:
        check_policy(KVPolicy(**refused.policy), ALL, BLOCK, CONTEXT)
    assert caught.value.param == f"kv_policy.{refused.field}" and refused.says in caught.value.message


@given(policies().map(lambda asked: asked.policy))
def test_the_least_that_is_named_is_accepted(policy: KVPolicy) -> None:
    least = policy.least_tokens(BLOCK)
    given = json.loads(json.dumps({name: getattr(policy, name) for name in ("kind", "sinks", "recent", "patience")}))
    if least >= 2**31 or (policy.kind in WEIGHED and policy.recent < BLOCK):
        return
    check_policy(KVPolicy(**given, tokens=least), ALL, BLOCK, least)
    with pytest.raises(InvalidParameter):
        check_policy(KVPolicy(**given, tokens=least - 1), ALL, BLOCK, least)


def test_a_kind_that_is_not_possible_is_refused_with_those_that_are() -> None:
    limits = PolicyLimits(WEIGHED, "this model has learned positions")
    with pytest.raises(InvalidParameter) as caught:
        check_policy(KVPolicy(kind="window", tokens=64), limits, BLOCK, CONTEXT)
    assert caught.value.message == (
        "kv_policy: window is not possible here: this model has learned positions; there are h2o, scissorhands, snapkv."
    )
    with pytest.raises(InvalidParameter, match="h2o is not possible here: it needs a processor; leave it out"):
        check_policy(KVPolicy(kind="h2o", tokens=64), PolicyLimits((), "it needs a processor"), BLOCK, CONTEXT)


def test_a_window_alone_is_longer_than_the_context() -> None:
    longest = {kind: KVPolicy(kind=kind, tokens=64).longest(CONTEXT) for kind in POLICY_KINDS}
    assert longest == {"window": LONGEST_STREAM, "h2o": CONTEXT, "scissorhands": CONTEXT, "snapkv": CONTEXT}


def test_what_is_protected_counts_as_sinks() -> None:
    asked = AskedPolicy(policy=KVPolicy(kind="h2o", tokens=100, sinks=16, recent=16))
    assert asked.protecting(10, BLOCK) == asked.policy
    assert asked.protecting(48, BLOCK) == KVPolicy(kind="h2o", tokens=100, sinks=48, recent=16)
    with pytest.raises(InvalidParameter) as caught:
        asked.protecting(53, BLOCK)
    assert caught.value.param == "kv_policy.tokens"
    assert 'which are never dropped, have 53 tokens; give at least 112, or protect "none"' in caught.value.message
    unprotected = AskedPolicy(policy=asked.policy, protect="none")
    assert unprotected.protecting(1000, BLOCK) == asked.policy
