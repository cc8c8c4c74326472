"""Checkpoints in every quantized layout, packed here bit by bit, with the plain checkpoint that each stands for."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

GROUP = 16
Layout = Callable[[str, Tensor], tuple[dict[str, Tensor], Tensor]]
"""(module, weight [outputs, inputs]) to the tensors that stand for it, and its numbers in float32."""


def stream(integers: Tensor, bits: int) -> Tensor:
    """int32 words [rows, any] of integers [rows, count], the lowest bits first."""
    rows = []
    for row in integers.tolist():
        whole = sum(int(value) << (bits * place) for place, value in enumerate(row))
        count = -(-len(row) * bits // 32)
        rows.append([whole >> (32 * word) & 0xFFFFFFFF for word in range(count)])
    return torch.tensor(rows, dtype=torch.int64).to(torch.uint32).view(torch.int32)


def rounded(weight: Tensor, bits: int, group_of: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(integers [outputs, inputs], scales and zeros [outputs, groups]) of float16 scales."""
    groups = int(group_of.max()) + 1
    scales, zeros = torch.empty(weight.shape[0], groups), torch.empty(weight.shape[0], groups, dtype=torch.int64)
    most = (1 << bits) - 1
    for group in range(groups):
        part = weight[:, group_of == group].float()
        low, high = part.amin(1).clamp(max=0), part.amax(1).clamp(min=0)
        scales[:, group] = ((high - low) / most).clamp(min=1e-6).half().float()
        zeros[:, group] = (-low / scales[:, group]).round().clamp(0, most).long()
    spread = scales[:, group_of], zeros[:, group_of]
    return ((weight.float() / spread[0]).round().long() + spread[1]).clamp(0, most), scales, zeros


def numbers(integers: Tensor, scales: Tensor, zeros: Tensor, group_of: Tensor) -> Tensor:
    return (integers - zeros[:, group_of]).float() * scales[:, group_of]


def gptq(bits: int, *, version: int = 1, act_order: bool = False, with_order: bool = True) -> Layout:
    """AutoGPTQ's words, of the format's first or second version."""

    def pack(module: str, weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        order = torch.arange(weight.shape[1]) // GROUP
        if act_order:
            order = order[torch.randperm(len(order), generator=torch.Generator().manual_seed(len(module)))]
        integers, scales, zeros = rounded(weight, bits, order)
        kept = stream(zeros.T, bits)
        if version == 1 and bits == 3:
            kept = stream(((zeros - 1) & 7).T, bits)
        elif version == 1:
            # Less one in each place of whole words, as they have been written since a zero of 0 is possible.
            ones = sum(1 << place for place in range(0, 32, bits))
            kept = ((kept.long() - ones) & 0xFFFFFFFF).to(torch.uint32).view(torch.int32)
        tensors = {"qweight": stream(integers.T.contiguous().T, bits).T.contiguous(), "qzeros": kept}
        tensors["scales"] = scales.T.half().contiguous()
        if with_order:
            tensors["g_idx"] = order.to(torch.int32)
        return {f"{module}.{name}": tensor for name, tensor in tensors.items()}, numbers(integers, scales, zeros, order)

    return pack


def awq(module: str, weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    """AutoAWQ's words of eight columns."""
    order = torch.arange(weight.shape[1]) // GROUP
    integers, scales, zeros = rounded(weight, 4, order)

    def words(columns: Tensor) -> Tensor:
        return stream(columns.view(columns.shape[0], -1, 8)[..., [0, 2, 4, 6, 1, 3, 5, 7]].flatten(1), 4)

    tensors = {"qweight": words(integers.T.contiguous()), "qzeros": words(zeros.T.contiguous())}
    tensors["scales"] = scales.T.half().contiguous()
    return {f"{module}.{name}": tensor for name, tensor in tensors.items()}, numbers(integers, scales, zeros, order)


def packed(
    bits: int, *, symmetric: bool, ordered: bool = False, group: int = GROUP, scale: torch.dtype = torch.bfloat16
) -> Layout:
    """compressed-tensors' pack-quantized."""

    def pack(module: str, weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        order = torch.arange(weight.shape[1]) // group
        if ordered:
            order = order.flip(0)
        integers, scales, zeros = rounded(weight, bits, order)
        if symmetric:
            zeros.fill_(1 << (bits - 1))
        tensors = {"weight_packed": stream(integers, bits), "weight_scale": scales.to(scale)}
        tensors["weight_shape"] = torch.tensor(weight.shape)
        if not symmetric:
            tensors["weight_zero_point"] = stream(zeros.T, bits).T.contiguous()
        if ordered:
            tensors["weight_g_idx"] = order.to(torch.int32)
        scales = tensors["weight_scale"].float()
        return {f"{module}.{name}": tensor for name, tensor in tensors.items()}, numbers(integers, scales, zeros, order)

    return pack


def mlx(bits: int, scale: torch.dtype = torch.bfloat16, group: int = 32) -> Layout:
    """MLX's unsigned words, whose groups have a scale and what is added."""

    def pack(module: str, weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        groups: Tensor = weight.float().unflatten(1, (-1, group))
        low, high = groups.amin(2), groups.amax(2)
        scales, biases = ((high - low) / ((1 << bits) - 1)).clamp(min=1e-6).to(scale), low.to(scale)
        spread = scales.float()[:, :, None], biases.float()[:, :, None]
        integers = ((groups - spread[1]) / spread[0]).round().clamp(0, (1 << bits) - 1).long()
        tensors = {"weight": stream(integers.flatten(1), bits).view(torch.uint32), "scales": scales, "biases": biases}
        found = (integers.float() * spread[0] + spread[1]).flatten(1)
        return {f"{module}.{name}": tensor for name, tensor in tensors.items()}, found

    return pack


def scaled(kind: torch.dtype, scales: str, name: str = "weight_scale") -> Layout:
    """Bytes times scales: one for all, one for each output, for groups of inputs, or for blocks of two sizes."""

    def pack(module: str, weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        outputs, inputs = weight.shape
        rows, columns = {
            "all": (outputs, inputs),
            "outputs": (1, inputs),
            "groups": (1, GROUP),
            "blocks": (24, 16),
            "large blocks": (128, 128),
        }[scales]
        down, across = -(-outputs // rows), -(-inputs // columns)
        largest = torch.zeros(down, across)
        for row in range(down):
            for column in range(across):
                block = weight[row * rows : (row + 1) * rows, column * columns : (column + 1) * columns]
                largest[row, column] = block.float().abs().max()
        factors = largest / (127 if kind is torch.int8 else 200)
        spread = factors.repeat_interleave(rows, 0)[:outputs].repeat_interleave(columns, 1)[:, :inputs]
        values = weight.float() / spread
        values = values.round().to(kind) if kind is torch.int8 else values.to(kind)
        kept = factors.view(()) if scales == "all" else factors
        return {f"{module}.weight": values, f"{module}.{name}": kept.clone()}, values.float() * spread

    return pack


def nf4(nested: bool) -> Layout:
    """bitsandbytes' four bits in blocks of 32, their magnitudes plain or in eight bits themselves."""
    table = torch.linspace(-1, 1, 16).sign() * torch.linspace(-1, 1, 16).square()

    def pack(module: str, weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        blocks = weight.float().reshape(-1, 32)
        largest = blocks.abs().amax(1)
        state = {"quant_type": "nf4", "blocksize": 32, "dtype": "float32", "shape": list(weight.shape)}
        tensors = {"weight.quant_map": table.clone()}
        if nested:
            ramp, mean = torch.linspace(-1, 1, 256), largest.mean()
            padded = torch.zeros(-(-len(largest) // 8) * 8)
            padded[: len(largest)] = largest - mean
            outer = padded.view(-1, 8).abs().amax(1)
            codes = ((padded / outer.repeat_interleave(8))[:, None] - ramp).abs().argmin(1)[: len(largest)]
            tensors |= {"weight.absmax": codes.to(torch.uint8), "weight.nested_absmax": outer}
            tensors["weight.nested_quant_map"] = ramp
            state |= {"nested_blocksize": 8, "nested_dtype": "float32", "nested_offset": float(mean)}
            largest = ramp[codes] * outer.repeat_interleave(8)[: len(largest)] + float(mean)
        else:
            tensors["weight.absmax"] = largest
        places = (blocks / largest[:, None]).unsqueeze(-1).sub(table).abs().argmin(-1)
        flat = places.flatten().view(-1, 2)
        tensors["weight"] = (flat[:, :1] << 4 | flat[:, 1:]).to(torch.uint8)
        raw = json.dumps(state).encode()
        tensors["weight.quant_state.bitsandbytes__nf4"] = torch.tensor(list(raw), dtype=torch.uint8)
        found = (table[places] * largest[:, None]).view(weight.shape)
        return {f"{module}.{name}": tensor for name, tensor in tensors.items()}, found

    return pack


def int8_rows(module: str, weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    """bitsandbytes' LLM.int8: rows of bytes and their largest magnitudes."""
    largest = weight.float().abs().amax(1)
    values = (weight.float() * (127 / largest)[:, None]).round().to(torch.int8)
    tensors = {"weight": values, "SCB": largest, "weight_format": torch.tensor(0, dtype=torch.uint8)}
    named = {f"{module}.{name}": tensor for name, tensor in tensors.items()}
    return named, values.float() * largest[:, None] * (1 / 127)


FP8 = torch.float8_e4m3fn
BLOCKS = {"quant_method": "fp8", "weight_block_size": [24, 16]}
COMPRESSED: dict[str, Any] = {"quant_method": "compressed-tensors", "format": "pack-quantized"}
LAYOUTS: dict[str, tuple[Layout, dict[str, Any]]] = {
    **{f"gptq {bits}": (gptq(bits), {"quant_method": "gptq"}) for bits in (2, 4, 8)},
    "gptq 3, v2": (gptq(3, version=2), {"quant_method": "gptq", "checkpoint_format": "gptq_v2"}),
    "gptq act-order": (gptq(4, act_order=True), {"quant_method": "gptq", "desc_act": True}),
    "gptq without order": (gptq(4, with_order=False), {"quant_method": "gptq"}),
    "awq": (awq, {"quant_method": "awq", "version": "gemm"}),
    "packed 4": (packed(4, symmetric=True), COMPRESSED),
    "packed 3": (packed(3, symmetric=False), COMPRESSED),
    "packed 3, symmetric": (packed(3, symmetric=True), COMPRESSED),
    "packed 2, symmetric": (packed(2, symmetric=True), COMPRESSED),
    "packed 8": (packed(8, symmetric=True, group=32, scale=torch.float16), COMPRESSED),
    "packed 8, zeros": (packed(8, symmetric=False, group=32, scale=torch.float16), COMPRESSED),
    "packed 8, act-order": (packed(8, symmetric=True, ordered=True, group=32, scale=torch.float16), COMPRESSED),
    "packed 4, act-order": (packed(4, symmetric=False, ordered=True), COMPRESSED),
    "int8 rows": (scaled(torch.int8, "outputs"), {**COMPRESSED, "format": "int-quantized"}),
    "int8 groups": (scaled(torch.int8, "groups"), {**COMPRESSED, "format": "int-quantized"}),
    "fp8 whole": (scaled(FP8, "all"), {"quant_method": "fp8"}),
    "fp8 rows": (scaled(FP8, "outputs"), {**COMPRESSED, "format": "float-quantized"}),
    "fp8 blocks": (scaled(FP8, "blocks", "weight_scale_inv"), BLOCKS),
    "fp8 large blocks": (
        scaled(FP8, "large blocks", "weight_scale_inv"),
        {"quant_method": "fp8", "weight_block_size": [128, 128]},
    ),
    "nf4": (nf4(nested=False), {"quant_method": "bitsandbytes", "load_in_4bit": True}),
    "nf4 nested": (nf4(nested=True), {"quant_method": "bitsandbytes", "load_in_4bit": True}),
    **{f"mlx {bits}": (mlx(bits), {"bits": bits, "group_size": 32}) for bits in (2, 3, 4, 5, 6, 8)},
    "mlx 4, float16": (mlx(4, torch.float16, 16), {"bits": 4, "group_size": 16, "mode": "affine"}),
    "LLM.int8": (int8_rows, {"quant_method": "bitsandbytes", "load_in_8bit": True}),
}


def quantize(model: Path, layout: Layout, said: dict[str, Any], target: Path) -> Path:
    """The checkpoint in `model`, its projections in a layout, in the directory `target`.

    `model` becomes the plain checkpoint of the same numbers.
    """
    target.mkdir()
    config = json.loads((model / "config.json").read_text())
    # MLX has a key of its own.
    key = "quantization_config" if "quant_method" in said else "quantization"
    (target / "config.json").write_text(json.dumps({**config, key: said}))
    plain = load_file(model / "model.safetensors")
    tensors: dict[str, Tensor] = {}
    for name, tensor in plain.items():
        if name.endswith("_proj.weight"):
            stored, plain[name] = layout(name.removesuffix(".weight"), tensor)
            tensors.update(stored)
        else:
            tensors[name] = tensor
    save_file(tensors, target / "model.safetensors", metadata={"format": "pt"})
    save_file(plain, model / "model.safetensors", metadata={"format": "pt"})
    return target


def in_mxfp4(folder: Path, out: Path) -> tuple[Path, Path]:
    """gpt-oss with experts as its files have them, in blocks; and with the numbers that these stand for."""
    tensors, numbers = load_file(folder / "model.safetensors"), {}
    for name in [each for each in tensors if each.endswith((".gate_up_proj", ".down_proj"))]:
        rows = tensors.pop(name).transpose(1, 2)
        experts, outputs, inputs = rows.shape
        generator = torch.Generator().manual_seed(outputs)
        nibbles = torch.randint(0, 256, (experts, outputs, inputs // 32, 16), dtype=torch.uint8, generator=generator)
        exponents = torch.randint(120, 126, (experts, outputs, inputs // 32), dtype=torch.uint8, generator=generator)
        tensors[f"{name}_blocks"], tensors[f"{name}_scales"] = nibbles, exponents
        numbers[name] = convert_moe_packed_tensors(nibbles, exponents, dtype=torch.float32)
    config = json.loads((folder / "config.json").read_text())
    plain_tensors = {name: each for name, each in tensors.items() if not name.endswith(("_blocks", "_scales"))}
    for place, own, held in (
        (out / "blocks", {**config, "quantization_config": {"quant_method": "mxfp4"}}, tensors),
        (out / "numbers", config, plain_tensors | {name: each.contiguous() for name, each in numbers.items()}),
    ):
        place.mkdir()
        (place / "config.json").write_text(json.dumps(own))
        save_file(held, place / "model.safetensors")
    return out / "blocks", out / "numbers"
