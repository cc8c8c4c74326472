"""What a folder says of how its weights are quantized: in config.json, or in the files that older programs wrote."""

import os.path
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from penstock.core.config import Reason
from penstock.core.errors import ModelFileError, UnsupportedModel
from penstock.loading.json_file import read_json
from penstock.loading.quantized import METHODS

CONFIG_KEY = "quantization_config"
# MLX has its own key, beside which newer releases write the other one with the same content.
_MLX_KEY = "quantization"
_COMPRESSED = ("pack-quantized", "int-quantized", "float-quantized", "naive-quantized", "mixed-precision", "dense")
# AutoGPTQ's and AutoAWQ's files before Hugging Face's configuration had a place for it, with what they mean.
OLDER_FILES = {"quantize_config.json": "gptq", "quant_config.json": "awq"}
# Ends of names that only quantized weights have, and the methods that they are of.
_TELLING = {".qweight": "GPTQ or AWQ", ".weight_packed": "compressed-tensors", ".absmax": "bitsandbytes"}


@dataclass(frozen=True, slots=True)
class Quantization:
    """How weights are quantized.

    Attributes:
        method: None where they are not.
        said: what is declared of it.
        found: what users should know of where that was found.
    """

    method: str | None = None
    said: Mapping[str, Any] = field(default_factory=dict)
    found: tuple[Reason, ...] = ()


def read_quantization(folder: Path, config: Mapping[str, Any], tensors: Iterable[str]) -> Quantization:
    """What is declared for the tensors of these names; there are no names where only the configuration is read.

    Raises UnsupportedModel for methods that are not read, and ModelFileError where tensors are quantized and nothing
    says how.
    """
    mlx = config.get(_MLX_KEY)
    if isinstance(mlx, dict):
        return _mlx(mlx)
    declared = config.get(CONFIG_KEY)
    if declared is not None:
        if not isinstance(declared, dict):
            raise ModelFileError(f"config.json's {CONFIG_KEY} must be a JSON object.")
        if {"bits", "group_size"} <= declared.keys() and not {"quant_method", "method"} & declared.keys():
            return _mlx(declared)
        return _checked("config.json", declared)
    telling = {end: name for name in tensors for end in _TELLING if name.endswith(end)}
    if ".qweight" in telling:
        for name, method in OLDER_FILES.items():
            if os.path.exists(folder / name):
                found = Reason("quantization config", name, f"config.json has no {CONFIG_KEY}")
                return _checked(name, {"quant_method": method, **read_json(folder / name)}, (found,))
    for end, name in telling.items():
        older = f", nor does {' or '.join(OLDER_FILES)}" if end == ".qweight" else ""
        raise ModelFileError(
            f"The files have weights quantized by {_TELLING[end]} ({name}), but config.json has no {CONFIG_KEY} that "
            f"says how{older}; download the model's configuration again."
        )
    return Quantization()


def plain_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration without what it says of quantization."""
    return {key: value for key, value in config.items() if key not in (CONFIG_KEY, _MLX_KEY)}


def _mlx(declared: Mapping[str, Any]) -> Quantization:
    mode = declared.get("mode", "affine")
    if mode != "affine":
        raise UnsupportedModel(
            f"The checkpoint is quantized by MLX in the mode {mode!r:.80}; implemented: affine. Take the model in "
            "another format."
        )
    why = "MLX's integers have scales and biases, which become numbers; --quantization int8 or int4 makes them smaller"
    return Quantization("mlx", declared, (Reason("mlx", "dequantized", why),))


def _checked(file: str, declared: Mapping[str, Any], found: tuple[Reason, ...] = ()) -> Quantization:
    method = declared.get("quant_method", declared.get("method"))
    if method == "exl2" or method == "exl3":
        raise UnsupportedModel(
            f"The checkpoint is in {method}'s format, whose integers have widths and orders made for one program's GPU "
            "kernels; take the model as GPTQ, AWQ, compressed-tensors or GGUF."
        )
    if method not in METHODS:
        raise UnsupportedModel(
            f"{file} has {CONFIG_KEY} with quant_method {method!r:.80}; implemented: {', '.join(METHODS)}."
        )
    if method == "compressed-tensors" and declared.get("format", "dense") not in _COMPRESSED:
        raise UnsupportedModel(
            f"The checkpoint is in compressed-tensors' format {declared['format']!r:.80}; implemented: "
            f"{', '.join(_COMPRESSED)}."
        )
    if method == "awq" and str(declared.get("version", "gemm")).lower() != "gemm":
        raise UnsupportedModel(f"The checkpoint is AWQ of version {declared['version']!r:.80}; implemented: gemm.")
    return Quantization(method, declared, found)
