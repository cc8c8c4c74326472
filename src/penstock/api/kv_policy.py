"""The field `kv_policy`: how a request bounds what it holds of its context, and what its answer says of that."""

from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from penstock.core.errors import InvalidParameter
from penstock.core.kv_policy import FULL, AskedPolicy, KVPolicy, PolicyKind, Protection, asked_policy
from penstock.engine.interface import ModelInfo


class KVPolicyFields(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A policy; see `core.kv_policy.KVPolicy`. None stands for the default."""

    type: PolicyKind
    tokens: int
    sinks: int | None = None
    recent: int | None = None
    patience: int | None = None
    protect: Protection | None = None


# "full": the whole context is held, although the server has a policy for requests that say nothing.
KVPolicyField = KVPolicyFields | Literal["full"]


class ContextUsage(msgspec.Struct, forbid_unknown_fields=True):
    """What became of a bounded context: the policy, how many of its tokens were dropped, and whether none were.

    Where it is not `exact`, the tokens of the output depend on when others were dropped.
    """

    type: PolicyKind
    dropped_tokens: int
    exact: bool


def policy_of(field: KVPolicyField | None, model: ModelInfo, *, has_system: bool) -> AskedPolicy | None:
    """The policy that holds for a request; None where it holds its whole context. Raises InvalidParameter.

    `has_system`: whether its prompt can begin with system messages.
    """
    if field is None:
        return model.kv_policy
    if field == FULL:
        return None
    given = {name: value for name, value in msgspec.structs.asdict(field).items() if value is not None}
    if field.protect == "system" and not has_system:
        raise InvalidParameter("kv_policy.protect", "completions have no system messages; give sinks instead.")
    return asked_policy(given)


def bounds_of(model: ModelInfo, asked: AskedPolicy | None) -> ModelInfo:
    """The model, with what is the longest context of requests with this policy."""
    return model if asked is None else replace(model, max_model_len=asked.policy.longest(model.max_model_len))


def context_usage(policy: KVPolicy | None, dropped: int) -> dict[str, Any]:
    """What usage says of a bounded context beside all else."""
    if policy is None:
        return {}
    return {"kv_policy": {"type": policy.kind, "dropped_tokens": dropped, "exact": dropped == 0}}
