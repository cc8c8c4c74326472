"""Tensors of checkpoints as llama.cpp's converter puts them together, takes them apart and turns them, and back."""

import re
from collections.abc import Callable
from typing import Any

import torch

Tensors = dict[str, torch.Tensor]
Order = Callable[[Tensors, dict[str, Any]], Tensors]


def in_file(tensors: Tensors, config: dict[str, Any], architecture: str, *, whole: bool) -> Tensors:
    """Tensors as a file of the architecture has them, by names of the checkpoint or names like these.

    With `whole`, as those files have them that have more of them in one tensor.
    """
    for order, _ in _orders(architecture, whole):
        tensors = order(tensors, config)
    return tensors


def in_checkpoint(tensors: Tensors, config: dict[str, Any], architecture: str, *, whole: bool) -> Tensors:
    """The reverse."""
    for _, back in reversed(_orders(architecture, whole)):
        tensors = back(tensors, config)
    return tensors


def _orders(architecture: str, whole: bool) -> tuple[tuple[Order, Order], ...]:
    return _WHOLE[architecture] if whole else _ORDERS.get(architecture, (_EXPERTS,))


def _merged(tensors: Tensors, _config: dict[str, Any]) -> Tensors:
    """With all experts of a layer in one tensor, as files have them."""
    found: Tensors = {}
    for name in tensors:
        match = re.fullmatch(r"(.+\.experts)\.(\d+)\.(.+)", name)
        if match is None:
            found[name] = tensors[name]
        elif match[2] == "0":
            count = sum(each.startswith(f"{match[1]}.") and each.endswith(f".{match[3]}") for each in tensors)
            found[f"{match[1]}.{match[3]}"] = torch.stack(
                [tensors[f"{match[1]}.{number}.{match[3]}"] for number in range(count)]
            )
    # transformers has Granite's so.
    for name in [each for each in found if each.endswith(("input_linear.weight", "output_linear.weight"))]:
        layer, whole = name.rsplit(".", 2)[0], found.pop(name)
        parts = ("gate_proj", "up_proj") if "input" in name else ("down_proj",)
        for part, tensor in zip(parts, whole.chunk(len(parts), dim=1), strict=True):
            found[f"{layer}.experts.{part}.weight"] = tensor.contiguous()
    return found


def _apart(tensors: Tensors, _config: dict[str, Any]) -> Tensors:
    """The reverse."""
    found: Tensors = {}
    for name, tensor in tensors.items():
        if tensor.ndim == 3:
            prefix, _, part = name.rpartition(".experts.")
            found |= {f"{prefix}.experts.{number}.{part}": each.clone() for number, each in enumerate(tensor)}
        else:
            found[name] = tensor
    return found


def _ended(tensors: Tensors, _config: dict[str, Any]) -> Tensors:
    """With the ending of weights where a checkpoint has all experts as one tensor, and none."""
    return {f"{name}.weight" if name.endswith(("up_proj", "down_proj")) else name: tensors[name] for name in tensors}


def _bare(tensors: Tensors, _config: dict[str, Any]) -> Tensors:
    return {name.removesuffix(".weight") if ".experts." in name else name: tensors[name] for name in tensors}


def _latents_apart(tensors: Tensors, config: dict[str, Any]) -> Tensors:
    """With each head's way from latents to keys, across, and that to values as two tensors."""
    found: Tensors = {}
    for name, tensor in tensors.items():
        if name.endswith("kv_b_proj.weight"):
            sizes = config["qk_nope_head_dim"], config["v_head_dim"]
            keys, values = tensor.unflatten(0, (config["num_attention_heads"], -1)).split(sizes, dim=1)
            found[name.replace("kv_b", "k_b")] = keys.transpose(1, 2).contiguous()
            found[name.replace("kv_b", "v_b")] = values.contiguous()
        else:
            found[name] = tensor
    return found


def _latents_together(tensors: Tensors, _config: dict[str, Any]) -> Tensors:
    found: Tensors = {}
    for name, tensor in tensors.items():
        if name.endswith("k_b_proj.weight"):
            both = torch.cat((tensor.transpose(1, 2), tensors[name.replace("k_b", "v_b")]), dim=1)
            found[name.replace("k_b", "kv_b")] = both.flatten(0, 1)
        elif not name.endswith("v_b_proj.weight"):
            found[name] = tensor
    return found


def _fused(tensors: Tensors, _config: dict[str, Any]) -> Tensors:
    """With queries, keys and values as one tensor."""
    found: Tensors = {}
    for name, tensor in tensors.items():
        if ".q_proj." in name:
            parts = [tensors[name.replace(".q_proj.", f".{part}.")] for part in ("q_proj", "k_proj", "v_proj")]
            found[name.replace(".q_proj.", ".qkv_proj.")] = torch.cat(parts)
        elif ".k_proj." not in name and ".v_proj." not in name:
            found[name] = tensor
    return found


def _unfused(tensors: Tensors, config: dict[str, Any]) -> Tensors:
    found: Tensors = {}
    sizes = [config["head_dim"] * config[f"num_{heads}_heads"] for heads in ("attention", "key_value", "key_value")]
    for name, tensor in tensors.items():
        if ".qkv_proj." in name:
            for part, each in zip(("q_proj", "k_proj", "v_proj"), tensor.split(sizes), strict=True):
                found[name.replace("qkv_proj", part)] = each.clone()
        else:
            found[name] = tensor
    return found


def _heads_last(tensors: Tensors, config: dict[str, Any]) -> Tensors:
    """With queries of all heads first, then keys, then values, instead of a head's three beside each other."""
    return _swapped(tensors, (config["num_attention_heads"], 3))


def _heads_first(tensors: Tensors, config: dict[str, Any]) -> Tensors:
    return _swapped(tensors, (3, config["num_attention_heads"]))


def _swapped(tensors: Tensors, sides: tuple[int, int]) -> Tensors:
    return {
        name: tensor.unflatten(0, (*sides, -1)).transpose(0, 1).flatten(0, 2) if "query_key_value" in name else tensor
        for name, tensor in tensors.items()
    }


def _across(tensors: Tensors, _config: dict[str, Any]) -> Tensors:
    """With matrices of blocks as [outputs, inputs], or the reverse."""
    return {
        name: tensor.t().contiguous() if tensor.ndim == 2 and ".h." in name else tensor
        for name, tensor in tensors.items()
    }


def _experts_and_others(
    tensors: Tensors,
) -> tuple[dict[tuple[str, str], torch.Tensor], Tensors]:
    """Those of experts by what stands before and after `.experts.`, and the others by name."""
    experts: dict[tuple[str, str], torch.Tensor] = {}
    others: Tensors = {}
    for name, tensor in tensors.items():
        prefix, _, part = name.rpartition(".experts.")
        if prefix:
            experts[prefix, part] = tensor
        else:
            others[name] = tensor
    return experts, others


def _gpt_oss_apart(tensors: Tensors, _config: dict[str, Any]) -> Tensors:
    """With matrices of experts as rows of outputs, and gates and ups, which take turns, as two tensors."""
    experts, found = _experts_and_others(tensors)
    for (prefix, part), tensor in experts.items():
        stem, kind = part.removesuffix("_bias"), "bias" if part.endswith("_bias") else "weight"
        rows = tensor if kind == "bias" else tensor.transpose(1, 2)
        parts = {"gate_proj": rows[:, ::2], "up_proj": rows[:, 1::2]} if stem == "gate_up_proj" else {stem: rows}
        found |= {f"{prefix}.experts.{each}.{kind}": own.contiguous() for each, own in parts.items()}
    return found


def _gpt_oss_together(tensors: Tensors, _config: dict[str, Any]) -> Tensors:
    """The reverse."""
    experts, found = _experts_and_others(tensors)
    for (prefix, part), tensor in experts.items():
        stem, _, kind = part.rpartition(".")
        if stem == "up_proj":
            continue
        rows = tensor
        if stem == "gate_proj":
            stem = "gate_up_proj"
            rows = torch.stack((tensor, tensors[f"{prefix}.experts.up_proj.{kind}"]), dim=2).flatten(1, 2)
        whole = rows if kind == "bias" else rows.transpose(1, 2)
        found[f"{prefix}.experts.{stem}{'_bias' if kind == 'bias' else ''}"] = whole.contiguous()
    return found


_EXPERTS: tuple[Order, Order] = (_merged, _apart)
_LATENTS: tuple[Order, Order] = (_latents_apart, _latents_together)
# What is done one after another, and undone.
_ORDERS: dict[str, tuple[tuple[Order, Order], ...]] = {
    "gpt-oss": ((_gpt_oss_apart, _gpt_oss_together),),
    "deepseek2": (_EXPERTS, _LATENTS),
    "mistral4": ((_ended, _bare), _LATENTS),
    "gemma4": ((_ended, _bare),),
    "gptneox": ((_heads_last, _heads_first),),
    "gpt2": ((_across, _across),),
}
_WHOLE: dict[str, tuple[tuple[Order, Order], ...]] = {
    "deepseek2": (_EXPERTS,),
    "chatglm": ((_fused, _unfused),),
    "glm4": ((_fused, _unfused),),
}
