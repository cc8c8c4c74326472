"""A model on a machine, from the model's configuration and the machine's name."""

from collections.abc import Mapping
from typing import Any

import msgspec

from penstock.core.errors import ConfigurationError
from penstock.planning.formats import FORMATS, Format, format_of
from penstock.planning.hardware import Device, Machine
from penstock.planning.latency import Deployment
from penstock.planning.reading import decoder_config, shape_of

HEAD = FORMATS["bfloat16"]
# Devices that can share a layer; more than any model has query heads.
MOST_SPLIT = 1024


def deploy(
    config: Mapping[str, Any],
    machine: Machine,
    split: int,
    *,
    stages: int = 1,
    groups: int = 1,
    dtype: str | None = None,
    kv_cache_dtype: str,
) -> Deployment:
    """A model with the configuration of its `config.json`, each layer on `split` devices of a machine.

    `groups` of these have requests of their own, but for routed experts.

    Weights have the format `dtype`, or the one that the configuration has. Raises ConfigurationError where devices
    cannot share layers, where nothing is known of their memory, or of a format.
    """
    check_split(machine, split, stages)
    decoder = decoder_config(config)
    kept, attention = _formats(decoder, dtype)
    shape = shape_of(decoder)
    if stages > shape.num_layers:
        raise ConfigurationError(f"{shape.num_layers} layers cannot be in {stages} stages; give up to that number.")
    if groups > 1 and not shape.routes:
        raise ConfigurationError(
            "--data-parallel-size is of models with routed experts, which groups share; replicas need no option."
        )
    return Deployment(
        shape=shape,
        device=machine.device,
        split=split,
        stages=stages,
        groups=groups,
        weights=kept,
        cache=format_of(kv_cache_dtype, "--kv-cache-dtype"),
        attention_weights=attention,
        head=kept if _has_head_as_weights(machine.device, kept, dtype) else HEAD,
    )


def _has_head_as_weights(device: Device, kept: Format, asked: str | None) -> bool:
    """Whether embedding and head have the format of all weights, as where Penstock rounds them on a processor."""
    rounded = asked is not None and device.kind == "cpu" and kept in (FORMATS["int8"], FORMATS["int4"])
    return rounded or kept.kind == "gguf" or kept.bits > HEAD.bits


def replica_of(machine: Machine, sharing: int | None = None, stages: int = 1, groups: int = 1) -> tuple[Machine, int]:
    """Devices, and over how many of them each layer is split: all of a stage's, or `sharing` for each group.

    A single device stands for all of its kind that a replica has.
    """
    split = groups * (sharing or max(1, machine.count // stages // groups))
    if machine.count == 1:
        machine = msgspec.structs.replace(machine, count=split * stages)
    return machine, split


def check_split(machine: Machine, split: int, stages: int = 1) -> None:
    """Raise ConfigurationError where devices cannot share layers, or nothing is known of their memory."""
    if not machine.device.memory:
        raise ConfigurationError(
            f"{machine.device.name} has the memory that is put into it; `penstock plan` takes it as --memory, such as "
            "256GiB."
        )
    if split > MOST_SPLIT:
        raise ConfigurationError(f"{split:,} devices cannot share each layer; give up to {MOST_SPLIT}.")
    if split * stages > 1 and not machine.device.link:
        raise ConfigurationError(f"{machine.device.name} has no link to others, so one device has to hold the model.")


def _formats(config: Mapping[str, Any], asked: str | None) -> tuple[Format, Format | None]:
    """The format of weights, and of attention's where it is another."""
    if asked is not None:
        return format_of(asked), None
    declared = config.get("quantization_config")
    method = str(declared.get("quant_method", "unnamed")) if isinstance(declared, Mapping) else ""
    bits = declared.get("bits", 4) if isinstance(declared, Mapping) else 4
    match method:
        case "mxfp4":
            # gpt-oss has only its experts in four bits.
            return FORMATS["mxfp4"], FORMATS["bfloat16"]
        case "fp8":
            return FORMATS["fp8_block" if declared and declared.get("weight_block_size") else "fp8"], None
        case "awq" | "gptq" if bits in (4, 8):
            return FORMATS["int4" if bits == 4 else "int8_weights"], None
        case "":
            return format_of(str(config.get("torch_dtype") or config.get("dtype") or "bfloat16"), "torch_dtype"), None
        case _:
            raise ConfigurationError(f"The config's quantization {method!r} is not known here; say --dtype.")
