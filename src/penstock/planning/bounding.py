"""Contexts that a policy bounds, as plans and simulations see them."""

from msgspec.structs import replace

from penstock.core.errors import ConfigurationError, InvalidParameter
from penstock.core.kv_policy import (
    POLICY_KINDS,
    WEIGHED,
    KVPolicy,
    PolicyLimits,
    as_option,
    check_policy,
    policy_option,
)
from penstock.planning.latency import Deployment
from penstock.planning.shape import ModelShape

# Tokens of a KV block.
_BLOCK = 16
_LONGEST = 2**31


def policy_for(text: str | None, shape: ModelShape) -> KVPolicy | None:
    """The policy that an option asks for, for a model of this shape; raises ConfigurationError where it cannot be."""
    asked = policy_option(text)
    if asked is None:
        return None
    try:
        check_policy(asked.policy, _limits(shape), _BLOCK, _LONGEST)
    except InvalidParameter as error:
        raise ConfigurationError(as_option(error)) from None
    return asked.policy


def _limits(shape: ModelShape) -> PolicyLimits:
    """As `configuration.bounding` has them, of what a shape tells."""
    attentions = [layer.attention for layer in shape.layers if layer.attention.token_values]
    if any(layer.attention.sequence_values for layer in shape.layers):
        return PolicyLimits((), "this model has layers that sum up what came before, of which nothing can be dropped")
    if all(attention.window is not None for attention in attentions):
        return PolicyLimits((), "all layers of this model have windows, so that its contexts are bounded already")
    if any(attention.window is not None for attention in attentions):
        return PolicyLimits(WEIGHED, "a window is not: some of this model's layers have windows of their own")
    return PolicyLimits(POLICY_KINDS, "")


def bounded(deployment: Deployment, policy: KVPolicy | None) -> Deployment:
    """The deployment whose layers that see everything hold what a policy lets them, for estimates by formulas.

    Raises ConfigurationError for `snapkv`, which holds a prompt before it gives up a part.
    """
    if policy is None:
        return deployment
    if policy.kind == "snapkv":
        raise ConfigurationError(
            "--kv-policy snapkv holds all of a prompt until its end, which formulas do not tell apart; "
            "`penstock simulate` plays it."
        )
    layers = tuple(
        replace(layer, attention=replace(layer.attention, window=policy.tokens))
        if layer.attention.token_values and layer.attention.window is None
        else layer
        for layer in deployment.shape.layers
    )
    return replace(deployment, shape=replace(deployment.shape, layers=layers, held=policy.tokens))
