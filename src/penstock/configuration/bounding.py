"""How requests can bound their contexts, and how they do that say nothing of it: what a model and a machine allow."""

from collections.abc import Mapping
from types import MappingProxyType

from penstock.configuration.facts import MachineFacts, ModelFacts
from penstock.configuration.options import EngineOptions
from penstock.configuration.ranks import check_ranks
from penstock.configuration.reasons import Note
from penstock.core.errors import ConfigurationError, InvalidParameter
from penstock.core.kv import EVERYTHING, KVSpec
from penstock.core.kv_policy import (
    POLICY_KINDS,
    WEIGHED,
    AskedPolicy,
    PolicyLimits,
    as_option,
    check_policy,
    limits_of,
    policy_option,
)

_WHY_NO_WINDOW: Mapping[str, str] = MappingProxyType(
    {
        "learned": "this model has an embedding for each position, and a window's positions are those in the cache",
        "scaled": "this model's queries depend on their positions, and a window's positions are those in the cache",
        "none": "this model's keys do not turn with their positions, which a window moves",
    }
)


def resolve_policies(
    options: EngineOptions,
    model: ModelFacts,
    machine: MachineFacts,
    spec: KVSpec,
    max_model_len: int,
    note: Note,
) -> tuple[PolicyLimits, AskedPolicy | None]:
    """What requests can ask for, and what holds for those that do not ask.

    Raises ConfigurationError where the option asks for what is not possible.
    """
    limits = _limits(options, model, machine, spec)
    asked = policy_option(options.cache.kv_policy)
    if asked is None:
        can = f"requests can ask for {', '.join(limits.kinds)}" if limits.kinds else "requests cannot ask for one"
        why = f"contexts are held whole; {can}"
        note("kv policy", "full", f"{why}: {limits.why_not}" if limits.why_not else why)
        return limits, None
    # What is estimated here is measured later, and then looked at again (`pool_size.fit_pool`).
    estimated = machine.measures_steps and options.batch.max_model_len is None
    check_option(asked, limits, spec, model.max_position_embeddings if estimated else max_model_len)
    note("kv policy", asked, "as asked: requests that say nothing else hold no more of their contexts")
    return limits, asked


def check_option(asked: AskedPolicy, limits: PolicyLimits, spec: KVSpec, max_model_len: int) -> None:
    """Raise ConfigurationError where an engine cannot follow the policy that its option asks for."""
    try:
        check_policy(asked.policy, limits, spec.block_size, max_model_len)
    except InvalidParameter as error:
        raise ConfigurationError(as_option(error)) from None


def _limits(options: EngineOptions, model: ModelFacts, machine: MachineFacts, spec: KVSpec) -> PolicyLimits:
    why = _why_none(options, machine)
    if why is not None:
        return PolicyLimits((), why)
    if spec.keeps_nothing:
        return PolicyLimits((), "an encoder keeps no context")
    if model.max_source is not None:
        return PolicyLimits((), "an encoder–decoder's contexts are held whole")
    if check_ranks(options).stripes > 1:
        return PolicyLimits((), "contexts that are spread over processes are held whole")
    records = any(group.record_interval is not None for group in spec.groups)
    limits = limits_of([group.sees != EVERYTHING for group in spec.groups], records=records)
    if limits.kinds == POLICY_KINDS and model.positions != "turned":
        limits = PolicyLimits(WEIGHED, f"a window is not: {_WHY_NO_WINDOW[model.positions]}")
    if not model.rank_layers:
        return limits
    kinds = tuple(kind for kind in limits.kinds if kind not in WEIGHED)
    return PolicyLimits(kinds, "the others weigh attention, and each of several ranks has a part of it")


def _why_none(options: EngineOptions, machine: MachineFacts) -> str | None:
    """Why no context can be bounded, whatever the model is; None where they can."""
    if options.device.simulate is not None:
        return "simulated devices hold no keys and values"
    if machine.gpu is None and machine.obstacle is not None:
        return f"it needs the native kernels ({machine.obstacle})"
    return None
