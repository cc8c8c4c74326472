"""The books of a deployment's KV pool: the layout that the engine would give it, from the model's shape."""

from penstock.core.config import CacheConfig
from penstock.core.errors import ConfigurationError
from penstock.core.kv import LayerState, Plane, Visibility, lay_out
from penstock.planning.latency import STATE_BYTES, Deployment

BLOCK_SIZE = 16


def cache_of(deployment: Deployment, pool_bytes: int) -> CacheConfig:
    """The pool of `pool_bytes` on each device of a replica. Raises ConfigurationError where none fits."""
    states = []
    for layer in deployment.shape.layers:
        attention, split = layer.attention, deployment.split
        planes = []
        if attention.token_values:
            size = max(1, round(attention.values_on_each(split) * deployment.cache.bytes))
            planes.append(Plane("tokens", (size,), "uint8"))
        if attention.sequence_values:
            # In rows, which are laid out on lines of 64 bytes.
            lines = -(-round(attention.sequence_values / split * STATE_BYTES) // 64)
            planes.append(Plane("record", (max(1, lines), 64), "uint8", "sequence"))
        states += [LayerState(tuple(planes), Visibility(0, attention.window))] * layer.count
    spec = lay_out(states, BLOCK_SIZE)
    blocks = pool_bytes // spec.block_bytes
    if blocks < 1:
        raise ConfigurationError(
            f"{deployment.device.name} has no memory left for keys and values beside the weights; "
            "`penstock plan` says what would make room."
        )
    return CacheConfig(spec, blocks)
