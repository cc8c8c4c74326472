"""Contexts that a policy bounds, as plans and simulations see them."""

from msgspec.structs import replace

from penstock.core.errors import ConfigurationError, InvalidParameter
from penstock.core.kv_policy import KVPolicy, as_option, check_policy, limits_of, policy_option
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
    attentions = [layer.attention for layer in shape.layers]
    windows = [attention.window is not None for attention in attentions if attention.token_values]
    records = any(attention.sequence_values for attention in attentions)
    try:
        check_policy(asked.policy, limits_of(windows, records=records), _BLOCK, _LONGEST)
    except InvalidParameter as error:
        raise ConfigurationError(as_option(error)) from None
    return asked.policy


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
