"""Experts that files have as one tensor, as the tensors of each: what is cut are bytes that follow one another."""

import re
from collections.abc import Mapping
from dataclasses import replace

from penstock.loading.safetensors import TensorEntry

# All experts' gates and ups [experts, 2 · inner, width], and their ways back; the second names are Granite's.
_GATES_AND_UPS = re.compile(r"(?:(.+)\.experts\.gate_up_proj(?:\.weight)?|(.+)\.input_linear\.weight)")
_DOWNS = re.compile(r"(?:(.+)\.experts\.down_proj(?:\.weight)?|(.+)\.output_linear\.weight)")
_MIXTRAL = ".block_sparse_moe"
_OF_ALL = re.compile(r"(.+\.experts)\.(gate_up_proj|down_proj)(\.weight)?")
# gpt-oss's, which alone have biases: matrices [experts, inputs, outputs], or MXFP4 [experts, outputs, blocks, 16].
# Gates and ups take turns.
_GPT_OSS = re.compile(r"(.+\.experts\.)(gate_up_proj|down_proj)(_bias|_blocks|_scales|)")
# Far above any model.
MOST_EXPERTS = 1 << 16


def of_each_expert(tensors: Mapping[str, TensorEntry]) -> dict[str, TensorEntry]:
    """The tensors, with those of all experts cut into those of each: `experts.0.gate_proj.weight` and so on.

    In layers that are called `block_sparse_moe`, as Mixtral's are, the parts of an expert are w1, w3 and w2. gpt-oss's
    experts have `gate_up_proj` instead of two, and so have Qwen3-VL's, whose matrices are [experts, inputs, outputs].
    """
    found: dict[str, TensorEntry] = {}
    for name, entry in tensors.items():
        if len(entry.shape) < 2 or not entry.nbytes or entry.shape[0] > MOST_EXPERTS:
            found[name] = entry
        elif (match := _GPT_OSS.fullmatch(name)) and f"{match[1]}{match[2]}_bias" in tensors:
            found |= _of_gpt_oss(entry, match[1], match[2], match[3])
        elif len(entry.shape) != 3:
            found[name] = entry
        elif (match := _OF_ALL.fullmatch(name)) and _are_across(tensors, match[1], match[3] or ""):
            found |= _across(cut(entry, match[1], (match[2],)))
        elif (match := _GATES_AND_UPS.fullmatch(name)) and entry.shape[1] % 2 == 0:
            found |= cut(entry, f"{match[1] or match[2]}.experts", _names_in(match)[:2])
        elif match := _DOWNS.fullmatch(name):
            found |= cut(entry, f"{match[1] or match[2]}.experts", _names_in(match)[2:])
        else:
            found[name] = entry
    return found


def _are_across(tensors: Mapping[str, TensorEntry], prefix: str, ending: str) -> bool:
    """Whether matrices are [experts, inputs, outputs]: outputs of one are inputs of the other, and half as many."""
    both, down = (tensors.get(f"{prefix}.{part}{ending}") for part in ("gate_up_proj", "down_proj"))
    if both is None or down is None or len(both.shape) != 3 or len(down.shape) != 3:
        return False
    return both.shape[1:] == (down.shape[2], 2 * down.shape[1])


def _across(entries: Mapping[str, TensorEntry]) -> dict[str, TensorEntry]:
    return {name: replace(each, shape=each.shape[::-1], transposed=True) for name, each in entries.items()}


def _names_in(match: re.Match[str]) -> tuple[str, ...]:
    """What gate, up and down are called where a tensor of all experts is."""
    return ("w1", "w3", "w2") if (match[1] or "").endswith(_MIXTRAL) else ("gate_proj", "up_proj", "down_proj")


def cut(entry: TensorEntry, prefix: str, parts: tuple[str, ...], kind: str = "weight") -> dict[str, TensorEntry]:
    """A tensor [experts, rows, …] as `prefix.expert.part.kind` of each expert, whose rows the parts share."""
    experts, rows, *others = entry.shape
    shape, each = (rows // len(parts), *others), entry.nbytes // (experts * len(parts))
    found = {}
    for index in range(experts * len(parts)):
        name = f"{prefix}.{index // len(parts)}.{parts[index % len(parts)]}.{kind}"
        found[name] = replace(entry, name=name, shape=shape, offset=entry.offset + index * each, nbytes=each)
    return found


def _of_gpt_oss(entry: TensorEntry, prefix: str, part: str, suffix: str) -> dict[str, TensorEntry]:
    found = cut(entry, prefix.removesuffix("."), (part,), "bias" if suffix == "_bias" else f"weight{suffix}")
    return found if suffix or len(entry.shape) != 3 else _across(found)
