"""Experts that files have as one tensor, as the tensors of each: rows of a tensor are bytes that follow one another."""

import re
from collections.abc import Mapping
from dataclasses import replace

from penstock.loading.safetensors import TensorEntry

# All experts' gates and ups [experts, 2 · inner, width], and their ways back; the second names are Granite's.
_GATES_AND_UPS = re.compile(r"(?:(.+)\.experts\.gate_up_proj(?:\.weight)?|(.+)\.input_linear\.weight)")
_DOWNS = re.compile(r"(?:(.+)\.experts\.down_proj(?:\.weight)?|(.+)\.output_linear\.weight)")
_MIXTRAL = ".block_sparse_moe"
# Far above any model.
MOST_EXPERTS = 1 << 16


def of_each_expert(tensors: Mapping[str, TensorEntry]) -> dict[str, TensorEntry]:
    """The tensors, with those of all experts cut into those of each: `experts.0.gate_proj.weight` and so on.

    In layers that are called `block_sparse_moe`, as Mixtral's are, the parts of an expert are w1, w3 and w2.
    """
    found: dict[str, TensorEntry] = {}
    for name, entry in tensors.items():
        if len(entry.shape) != 3 or not entry.nbytes or entry.shape[0] > MOST_EXPERTS:
            found[name] = entry
        elif (match := _GATES_AND_UPS.fullmatch(name)) and entry.shape[1] % 2 == 0:
            found |= cut(entry, f"{match[1] or match[2]}.experts", _names_in(match)[:2])
        elif match := _DOWNS.fullmatch(name):
            found |= cut(entry, f"{match[1] or match[2]}.experts", _names_in(match)[2:])
        else:
            found[name] = entry
    return found


def _names_in(match: re.Match[str]) -> tuple[str, ...]:
    """What gate, up and down are called where a tensor of all experts is."""
    return ("w1", "w3", "w2") if (match[1] or "").endswith(_MIXTRAL) else ("gate_proj", "up_proj", "down_proj")


def cut(entry: TensorEntry, prefix: str, parts: tuple[str, ...]) -> dict[str, TensorEntry]:
    """A tensor [experts, rows, columns] as `prefix.expert.part.weight` of each expert, whose rows the parts share."""
    experts, rows, columns = entry.shape
    each = entry.nbytes // (experts * len(parts))
    found = {}
    for index in range(experts * len(parts)):
        name = f"{prefix}.{index // len(parts)}.{parts[index % len(parts)]}.weight"
        found[name] = replace(
            entry, name=name, shape=(rows // len(parts), columns), offset=entry.offset + index * each, nbytes=each
        )
    return found
