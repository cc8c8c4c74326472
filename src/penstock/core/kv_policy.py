"""How a request bounds what it holds of its context, where it is willing to have tokens forgotten."""

import json
import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal, get_args

import msgspec

from penstock.core.checks import check_integer
from penstock.core.errors import ConfigurationError, InvalidParameter

PolicyKind = Literal["window", "h2o", "scissorhands", "snapkv"]
POLICY_KINDS: tuple[PolicyKind, ...] = get_args(PolicyKind)
# Whose choice follows attention.
WEIGHED: tuple[PolicyKind, ...] = ("h2o", "scissorhands", "snapkv")
Protection = Literal["system", "none"]
PROTECTIONS: tuple[Protection, ...] = get_args(Protection)
# Asks for a whole context, where a server has a policy for those that ask for nothing.
FULL: Literal["full"] = "full"
# Tokens of prompt and output together of a request with a window, which no context bounds.
LONGEST_STREAM = 2**20
_MOST = 2**31 - 1
# What a policy has beside its kind, and the kinds for which each of these means something.
_NUMBERS: Mapping[str, tuple[PolicyKind, ...]] = MappingProxyType(
    {"tokens": POLICY_KINDS, "sinks": POLICY_KINDS, "recent": WEIGHED, "patience": ("scissorhands",)}
)


class KVPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """Which keys and values a request keeps where it has more tokens than it may hold.

    Whole blocks are dropped, the same in all layers that see everything; layers with a window keep what that says.
    What is computed after that depends on when blocks were dropped, so it is not the same bits in every batch.

    Attributes:
        kind: what goes first.
            `window`: the oldest behind the sinks; positions are those in the cache (Xiao et al., Efficient Streaming
            Language Models with Attention Sinks, ICLR 2024, section 3.2).
            `h2o`: what got the least attention of all that came behind it (Zhang et al., H2O: Heavy-Hitter Oracle,
            NeurIPS 2023, section 4).
            `scissorhands`: what has got little attention for the longest, and what has got little for `patience` steps
            (Liu et al., Scissorhands, NeurIPS 2023, section 4).
            `snapkv`: once, at the prompt's end, what the prompt's last `recent` tokens attend to the least (Li et al.,
            SnapKV, NeurIPS 2024, section 4); outputs are all kept.
        tokens: most tokens whose keys and values are held; of `snapkv`, of the prompt.
        sinks: the first tokens, which are never dropped.
        recent: the last ones, which are not either; `window` keeps all that it has room for.
        patience: steps, of `scissorhands`.
    """

    kind: PolicyKind
    tokens: int
    sinks: int = 16
    recent: int = 128
    patience: int = 400

    def __str__(self) -> str:
        numbers = [f"{name}={getattr(self, name)}" for name in _numbers_of(self.kind) if name != "tokens"]
        return ",".join([f"{self.kind}:{self.tokens}", *numbers])

    def longest(self, context: int) -> int:
        """Most tokens of prompt and output together, for a model of this context; a window's positions are bounded."""
        return LONGEST_STREAM if self.kind == "window" else context

    def held(self, tokens: int) -> int:
        """Most tokens that are held of a request with this number of them."""
        return tokens if self.kind == "snapkv" else min(tokens, self.tokens)

    def least_tokens(self, block_size: int) -> int:
        """The least `tokens` with its other numbers: what is never dropped, a block to drop, and one to write."""
        blocks = -(-self.sinks // block_size) + (-(-self.recent // block_size) if self.kind in WEIGHED else 0)
        return (blocks + 2) * block_size


class AskedPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """A policy as it is asked for, before a prompt is known.

    Attributes:
        policy: it.
        protect: `system`: of a conversation, the system messages and the tools that its prompt begins with are never
            dropped; `none`: they can be.
    """

    policy: KVPolicy
    protect: Protection = "system"

    def __str__(self) -> str:
        return f"{self.policy},protect={self.protect}"

    def protecting(self, tokens: int, block_size: int) -> KVPolicy:
        """The policy for a prompt whose first `tokens` tokens are to be protected; raises InvalidParameter."""
        policy = self.policy
        if self.protect == "none" or tokens <= policy.sinks:
            return policy
        wider = msgspec.structs.replace(policy, sinks=tokens)
        least = wider.least_tokens(block_size)
        if policy.tokens < least:
            raise InvalidParameter(
                "kv_policy.tokens",
                f"{policy.tokens} tokens are too few for this prompt: its system messages and tools, which are never "
                f'dropped, have {tokens} tokens; give at least {least}, or protect "none".',
            )
        return wider


class PolicyLimits(msgspec.Struct, frozen=True):
    """Which policies an engine can follow.

    Attributes:
        kinds: those.
        why_not: why it cannot follow the others, as a sentence goes on behind a colon.
    """

    kinds: tuple[PolicyKind, ...] = ()
    why_not: str = "this engine drops nothing"


def limits_of(windows: Sequence[bool], *, records: bool) -> PolicyLimits:
    """Which policies a model's layers allow, where nothing else is in the way.

    `windows` are of its kinds of layers that keep something of each token: whether they see the last tokens alone.
    `records`: others keep what has come of all tokens.
    """
    if records:
        return PolicyLimits((), "this model has layers that sum up what came before, of which nothing can be dropped")
    if all(windows):
        return PolicyLimits((), "all layers of this model have windows, so that its contexts are bounded already")
    if any(windows):
        return PolicyLimits(WEIGHED, "a window is not: some of this model's layers have windows of their own")
    return PolicyLimits(POLICY_KINDS, "")


def check_policy(policy: KVPolicy, limits: PolicyLimits, block_size: int, max_model_len: int) -> None:
    """Raise InvalidParameter where an engine cannot follow a policy, with the cause and what would work."""
    if policy.kind not in POLICY_KINDS:
        raise InvalidParameter("kv_policy.type", f"{policy.kind!r} is not one of {', '.join(POLICY_KINDS)}.")
    if policy.kind not in limits.kinds:
        others = f"there are {', '.join(limits.kinds)}" if limits.kinds else "leave it out"
        raise InvalidParameter("kv_policy", f"{policy.kind} is not possible here: {limits.why_not}; {others}.")
    for name in _numbers_of(policy.kind):
        check_integer(f"kv_policy.{name}", getattr(policy, name), 0 if name == "sinks" else 1, _MOST)
    tokens, least = policy.tokens, policy.least_tokens(block_size)
    if tokens < block_size:
        raise InvalidParameter(
            "kv_policy.tokens",
            f"{tokens} tokens are less than a KV block, which has {block_size} and is dropped whole; give at least "
            f"{least}.",
        )
    if policy.sinks >= tokens:
        raise InvalidParameter(
            "kv_policy.sinks",
            f"{policy.sinks} sinks, which are never dropped, leave nothing of {tokens} tokens for what comes behind "
            f"them; give fewer, or at least {least} tokens.",
        )
    if policy.kind in WEIGHED and policy.recent < block_size:
        raise InvalidParameter(
            "kv_policy.recent", f"{policy.recent} is less than a KV block; give at least {block_size}."
        )
    if tokens < least:
        recent = f", {policy.recent} recent tokens" if policy.kind in WEIGHED else ""
        raise InvalidParameter(
            "kv_policy.tokens",
            f"{tokens} tokens cannot hold {policy.sinks} sinks{recent} and two KV blocks of {block_size}; give at "
            f"least {least}, or lower the others.",
        )
    if tokens > max_model_len:
        raise InvalidParameter(
            "kv_policy.tokens",
            f"{tokens} tokens are more than this server's context of {max_model_len} (max_model_len), so that nothing "
            'would be dropped; give less, or "full".',
        )


def asked_policy(given: Mapping[str, Any]) -> AskedPolicy:
    """The policy of an object such as {"type": "h2o", "tokens": 2048}.

    Raises InvalidParameter where a key or a type is none, or where a key means nothing for a policy of this kind.
    """
    for name in given:
        if name not in ("type", "protect", *_NUMBERS):
            known = ", ".join(("type", *_NUMBERS, "protect"))
            raise InvalidParameter(f"kv_policy.{name[:40]}", f"is not a field of it; there are {known}.")
    for name in ("type", "tokens"):
        if name not in given:
            raise InvalidParameter(f"kv_policy.{name}", "is missing.")
    kind, protect = given["type"], given.get("protect", "system")
    for name, value, values in (("type", kind, POLICY_KINDS), ("protect", protect, PROTECTIONS)):
        if value not in values:
            raise InvalidParameter(f"kv_policy.{name}", f"{str(value)[:40]!r} is not one of {', '.join(values)}.")
    numbers = {name: value for name, value in given.items() if name in _NUMBERS}
    for name, value in numbers.items():
        if kind not in _NUMBERS[name]:
            kinds = " and ".join(_NUMBERS[name])
            raise InvalidParameter(f"kv_policy.{name}", f"means nothing for {kind}, but for {kinds}; leave it out.")
        check_integer(f"kv_policy.{name}", value, 0 if name == "sinks" else 1, _MOST)
    return AskedPolicy(policy=KVPolicy(kind=kind, **numbers), protect=protect)


def policy_option(value: "AskedPolicy | KVPolicy | Mapping[str, Any] | str | None") -> AskedPolicy | None:
    """The policy that an engine's option asks for; None for a whole context.

    Text is such as "window:2048", "h2o:2048,sinks=64,recent=256", "full", or a JSON object. Raises ConfigurationError.
    """
    if value is None or value == FULL:
        return None
    if isinstance(value, AskedPolicy):
        return value
    if isinstance(value, KVPolicy):
        return AskedPolicy(policy=value)
    if not isinstance(value, str | Mapping):
        raise ConfigurationError(f"--kv-policy {str(value)[:80]!r} is no policy; give a KVPolicy, text or an object.")
    try:
        return asked_policy(_read(value) if isinstance(value, str) else value)
    except InvalidParameter as error:
        raise ConfigurationError(as_option(error)) from None


def as_option(error: InvalidParameter) -> str:
    """What is wrong with a policy, where it was an engine's option that asked for it."""
    return "--kv-policy: " + error.message.removeprefix("kv_policy").lstrip(".: ")


def _read(text: str) -> Mapping[str, Any]:
    """The object that a text stands for."""
    if text.lstrip().startswith("{"):
        try:
            found: dict[str, Any] = json.loads(text)
        except ValueError as error:
            raise ConfigurationError(f"--kv-policy {text[:80]!r} is not JSON: {error}.") from None
        return found
    kind, *pairs = text.replace(":", ",tokens=", 1).split(",")
    named = [re.fullmatch(r"\s*(\w+)\s*=\s*(\w+)\s*", pair) for pair in pairs]
    if not pairs or not all(named):
        raise ConfigurationError(
            f"--kv-policy {text[:80]!r} is no policy; write one like window:2048 or h2o:2048,sinks=64,recent=256, or "
            "JSON."
        )
    given = {
        match[1]: int(match[2]) if re.fullmatch(r"[0-9]{1,10}", match[2]) else match[2] for match in named if match
    }
    return {"type": kind.strip(), **given}


def _numbers_of(kind: PolicyKind) -> tuple[str, ...]:
    return tuple(name for name, kinds in _NUMBERS.items() if kind in kinds)
