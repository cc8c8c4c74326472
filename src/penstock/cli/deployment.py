"""What options say of a model and its devices, for plans and simulations."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from penstock.cli.plan_options import DeploymentOptions
from penstock.core.errors import ConfigurationError
from penstock.loading.checkpoint import open_checkpoint
from penstock.loading.gguf import is_gguf
from penstock.loading.hub import resolve_model
from penstock.loading.json_file import read_json
from penstock.planning.calibration import Basis, MeasuredPoint, calibrated, prior_basis
from penstock.planning.formats import FORMATS, Format, format_of
from penstock.planning.hardware import Machine, machine_of
from penstock.planning.latency import Deployment
from penstock.planning.reading import decoder_config, shape_of

HEAD = FORMATS["bfloat16"]
# Devices that can share a layer; more than any model has query heads.
MOST_SPLIT = 1024


def deployed(model: str | None, options: DeploymentOptions) -> tuple[Deployment, Machine]:
    """The deployment that options describe. Raises ConfigurationError and ModelFileError."""
    if options.on is None:
        raise ConfigurationError(
            "--on is missing: say on which devices, such as --on h100; `penstock plan --list` shows all."
        )
    machine = machine_of(options.on)
    split = options.tensor_parallel_size or machine.count
    if machine.count == 1:
        machine = msgspec.structs.replace(machine, count=split)
    _check_split(machine, split)
    config = decoder_config(_config(model, options.model_config, options.dtype))
    kept, attention = _formats(config, options.dtype)
    deployment = Deployment(
        shape=shape_of(config),
        device=machine.device,
        split=split,
        weights=kept,
        cache=format_of(options.kv_cache_dtype, "--kv-cache-dtype"),
        attention_weights=attention,
        head=kept if kept.kind == "gguf" or kept.bits > HEAD.bits else HEAD,
    )
    return deployment, machine


def _check_split(machine: Machine, split: int) -> None:
    """Raise ConfigurationError where devices cannot share layers, or nothing is known of their memory."""
    if not machine.device.memory:
        raise ConfigurationError(
            f"{machine.device.name} has the memory that is put into it, which plans do not know; take a device with a "
            "size in `penstock plan --list`."
        )
    if split > MOST_SPLIT:
        raise ConfigurationError(f"{split:,} devices cannot share each layer; give up to {MOST_SPLIT}.")
    if split > 1 and not machine.device.link:
        raise ConfigurationError(f"{machine.device.name} has no link to others, so one device has to hold the model.")


def basis_of(deployment: Deployment, calibration: Path | None) -> Basis:
    """What estimates stand on. Raises ConfigurationError where a file of measured runs cannot be used."""
    if calibration is None:
        return prior_basis(deployment)
    try:
        measured = msgspec.json.decode(calibration.read_bytes(), type=list[MeasuredPoint])
    except OSError as error:
        raise ConfigurationError(f"--calibration {calibration} cannot be read: {error.strerror}.") from None
    except msgspec.DecodeError as error:
        raise ConfigurationError(f"--calibration {calibration} is no list of measured runs in JSON: {error}.") from None
    return calibrated(deployment, measured)


def _config(model: str | None, file: Path | None, dtype: str | None) -> Mapping[str, Any]:
    if (model is None) == (file is None):
        raise ConfigurationError("Give either MODEL or --model-config FILE.")
    if file is not None:
        if not file.is_file():
            raise ConfigurationError(f"--model-config {file} is no file.")
        return read_json(file)
    assert model is not None
    path = resolve_model(model)
    if is_gguf(path) and dtype is None:
        raise ConfigurationError("Tensors of a GGUF file have formats of their own; say --dtype, such as q4_k_m.")
    return open_checkpoint(path, weights=False).config


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
