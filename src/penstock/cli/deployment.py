"""What options say of a model and its devices, for plans and simulations."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from penstock.cli.plan_options import DeploymentOptions
from penstock.core.errors import ConfigurationError
from penstock.loading.checkpoint import open_checkpoint
from penstock.loading.hub import resolve_model
from penstock.loading.json_file import read_json
from penstock.planning.calibration import Basis, MeasuredPoint, calibrated, prior_basis
from penstock.planning.formats import FORMATS, Format, format_of
from penstock.planning.hardware import Machine, machine_of
from penstock.planning.latency import Deployment
from penstock.planning.reading import shape_of


def deployed(model: str | None, options: DeploymentOptions) -> tuple[Deployment, Machine]:
    """The deployment that options describe. Raises ConfigurationError and ModelFileError."""
    if options.on is None:
        raise ConfigurationError(
            "--on is missing: say on which devices, such as --on h100; `penstock plan --list` shows all."
        )
    config, machine = _config(model, options.model_config), machine_of(options.on)
    if machine.count == 1 and options.tensor_parallel_size:
        machine = msgspec.structs.replace(machine, count=options.tensor_parallel_size)
    kept, attention = _formats(config, options.dtype)
    deployment = Deployment(
        shape=shape_of(config),
        device=machine.device,
        split=options.tensor_parallel_size or machine.count,
        weights=kept,
        cache=format_of(options.kv_cache_dtype, "--kv-cache-dtype"),
        attention_weights=attention,
    )
    return deployment, machine


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


def _config(model: str | None, file: Path | None) -> Mapping[str, Any]:
    if (model is None) == (file is None):
        raise ConfigurationError("Give either MODEL or --model-config FILE.")
    if file is not None:
        return read_json(file)
    assert model is not None
    return open_checkpoint(resolve_model(model), weights=False).config


def _formats(config: Mapping[str, Any], asked: str | None) -> tuple[Format, Format | None]:
    """The format of weights, and of attention's where it is another."""
    if asked is not None:
        return format_of(asked), None
    declared = config.get("quantization_config")
    method = str(declared.get("quant_method", "")) if isinstance(declared, Mapping) else ""
    match method:
        case "mxfp4":
            # gpt-oss has only its experts in four bits.
            return FORMATS["mxfp4"], FORMATS["bfloat16"]
        case "fp8":
            return FORMATS["fp8_block" if declared and declared.get("weight_block_size") else "fp8"], None
        case "awq" | "gptq":
            return FORMATS["int4"], None
        case "":
            return format_of(str(config.get("torch_dtype") or config.get("dtype") or "bfloat16")), None
        case _:
            raise ConfigurationError(f"The config's quantization {method!r} is not known here; say --dtype.")
