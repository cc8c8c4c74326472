"""A GGUF file as the checkpoint that it was made from: its metadata as config.json, its tensors by their own names."""

import math
import re
from array import array
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from penstock.core.errors import ModelFileError, UnsupportedModel
from penstock.layers.weights import HeadRows
from penstock.loading.experts import MOST_EXPERTS, cut
from penstock.loading.gguf import GgufFile, Texts
from penstock.loading.gguf_families import Family, Values, family_of
from penstock.loading.safetensors import TensorEntry

_WHOLE = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
ROPE_FACTORS = "rope_freqs.weight"
# What chooses experts, and what a shared expert is multiplied by.
ROUTER, ONE_COLUMN = "ffn_gate_inp", "ffn_gate_inp_shexp.weight"
# Vectors that are no projection's, whose names in a checkpoint have no ending.
_BARE = ("exp_probs_b", "attn_sinks")
# Parameters of the RoPE of all published models of Llama 3; a file has their effect only.
_LOW, _HIGH, _ORIGINAL = 1.0, 4.0, 8192
_MOST_DIVISORS = 4096
_OF_AN_EXPERT = r"\.experts\.\d+\."
# The kind of special tokens, and those that end a turn in whatever model has them; files often name only one.
_CONTROL = 3
_ENDS_HARMONY = "<|return|>"
_ENDS = {
    "<|eot_id|>",
    "<|eom_id|>",
    "<|im_end|>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<end_of_turn>",
    "</s>",
    "<|end|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<eos>",
    "<end_of_utterance>",
    "<|call|>",
    _ENDS_HARMONY,
}


def config_of(file: GgufFile) -> dict[str, Any]:
    """What config.json says of the model. Raises ModelFileError and UnsupportedModel."""
    name, family = family_of(file)
    values = Values(file, name)
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None:
        raise ModelFileError(f"{file.path.name} has no tensor token_embd.weight, so it holds no language model.")
    heads = values.integer("attention.head_count")
    width = values.integer("embedding_length")
    config: dict[str, Any] = {
        "architectures": [family.architecture],
        "torch_dtype": _stored(file),
        "vocab_size": embedding.shape[0],
        "hidden_size": width,
        "intermediate_size": values.integer("feed_forward_length"),
        "num_hidden_layers": values.integer("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": values.integer("attention.head_count_kv", heads),
        "head_dim": values.integer("attention.key_length", width // max(1, heads)),
        "max_position_embeddings": values.integer("context_length"),
        "rms_norm_eps": values.number("attention.layer_norm_rms_epsilon"),
        "rope_theta": values.number("rope.freq_base", 10000.0),
        "tie_word_embeddings": "output.weight" not in file.tensors,
    }
    for key in ("attention.value_length", *(() if family.partial else ("rope.dimension_count",))):
        size = values.integer(key, config["head_dim"])
        if size != config["head_dim"]:
            raise UnsupportedModel(
                f"{file.path.name} has {name}.{key} = {size}; implemented: that of its keys, {config['head_dim']}."
            )
    config |= family.further(values, config)
    if values.has_tensor("ffn_gate.bias"):
        config["mlp_bias"] = True
    if "rope_scaling" not in config and (scaling := _rope_scaling(file, values, config)):
        config["rope_scaling"] = scaling
    ends = _ends(file)
    if ends:
        config["eos_token_id"] = ends
    return config


def _ends(file: GgufFile) -> list[int]:
    """What ends an output: the tokens that the file names for that, and those of its special ones that always do."""
    named = [file.metadata.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot", "eom")]
    ends = [token for token in named if isinstance(token, int) and not isinstance(token, bool)]
    tokens, kinds = (file.metadata.get(f"tokenizer.ggml.{name}") for name in ("tokens", "token_type"))
    if isinstance(tokens, Texts) and isinstance(kinds, array) and len(tokens) == len(kinds):
        special = (place for place, kind in enumerate(kinds) if kind == _CONTROL)
        found = {tokens[place]: place for place in special if tokens[place] in _ENDS}
        if _ENDS_HARMONY in found:
            # There this ends one message of several.
            found.pop("<|end|>", None)
        ends += found.values()
    return list(dict.fromkeys(ends))


def _stored(file: GgufFile) -> str:
    """The type that holds all matrices as they are: numbers made of blocks are float32."""
    # What chooses experts is in float32 in all files.
    matrices = (each for each in file.tensors.values() if len(each.shape) > 1 and ROUTER not in each.name)
    kinds = {entry.dtype for entry in matrices}
    return kinds.pop() if len(kinds) == 1 and kinds <= {"bfloat16", "float16"} else "float32"


def _rope_scaling(file: GgufFile, values: Values, config: Mapping[str, Any]) -> dict[str, Any] | None:
    """What config.json says of it. A file has Llama 3's scaling as a divisor for each frequency."""
    kind = values.text("rope.scaling.type", "linear")
    # A factor of 0 stands for none; the second key is the older one.
    factor = values.number("rope.scaling.factor", values.number("rope.scale_linear", 1.0)) or 1.0
    if kind not in ("none", "linear"):
        raise UnsupportedModel(f"{file.path.name} scales rotary positions by {kind}; implemented: none and linear.")
    linear = {"rope_type": "linear", "factor": factor} if kind == "linear" and factor != 1 else None
    if ROPE_FACTORS not in file.tensors:
        return linear
    if linear:
        raise UnsupportedModel(f"{file.path.name} scales rotary positions twice, which is not implemented.")
    return _llama3_scaling(file, config)


def _llama3_scaling(file: GgufFile, config: Mapping[str, Any]) -> dict[str, Any]:
    divisors, head_dim, theta = _numbers(file.tensors[ROPE_FACTORS]), config["head_dim"], config["rope_theta"]
    factor = max(divisors)
    alike = head_dim == 2 * len(divisors) and 0 < factor < math.inf and 0 < theta < math.inf
    if not alike or not all(map(_near, divisors, llama3_divisors(head_dim, theta, factor, _LOW, _HIGH, _ORIGINAL))):
        raise UnsupportedModel(
            f"{file.path.name} divides the frequencies of rotary positions ({ROPE_FACTORS}) otherwise than Llama 3 "
            "does, which is not implemented; serve the checkpoint that it was made from."
        )
    return {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": _LOW,
        "high_freq_factor": _HIGH,
        "original_max_position_embeddings": _ORIGINAL,
    }


def _near(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=1e-4)


def _numbers(entry: TensorEntry) -> "array[float]":
    if entry.dtype != "float32" or entry.nbytes > _MOST_DIVISORS * 4:
        raise UnsupportedModel(f"Tensor {entry.name} is {entry.dtype} {list(entry.shape)}; implemented: a float32 row.")
    numbers = array("f")
    with entry.file.open("rb") as stream:
        stream.seek(entry.offset)
        numbers.frombytes(stream.read(entry.nbytes))
    return numbers


def entries_of(file: GgufFile) -> dict[str, TensorEntry]:
    """Every tensor by the name that it has in a checkpoint, but for the divisors of frequencies."""
    name, family = family_of(file)
    values = Values(file, name)
    heads = values.integer("attention.head_count")
    counts = {"self_attn.q_proj": heads, "self_attn.k_proj": values.integer("attention.head_count_kv", heads)}
    found: dict[str, TensorEntry] = {}
    for original, entry in file.tensors.items():
        if original == ROPE_FACTORS:
            continue
        renamed = _renamed(original, family)
        if "{}" in renamed:
            found |= _of_each_expert(file, entry, renamed)
            continue
        paired = next((count for stem, count in counts.items() if f".{stem}." in renamed), 0)
        shift = -1.0 if family.shifted and renamed.endswith("norm.weight") else 0.0
        rows = _rows(file, entry, paired) if paired and family.paired else None
        # A projection to one column is a vector there.
        shape = (1, *entry.shape) if original.endswith(ONE_COLUMN) else entry.shape
        found[renamed] = replace(entry, name=renamed, rows=rows, shift=shift, shape=shape)
    return found


def _rows(file: GgufFile, entry: TensorEntry, heads: int) -> HeadRows:
    """The order of rows of heads whose neighbours turn together."""
    if heads < 1 or entry.shape[0] % (2 * heads):
        raise ModelFileError(
            f"{file.path.name} has tensor {entry.name} of {entry.shape[0]} rows, no pairs of {heads} heads."
        )
    size = entry.shape[0] // heads
    return HeadRows(heads, size, turned=size, paired=True)


def _of_each_expert(file: GgufFile, entry: TensorEntry, renamed: str) -> dict[str, TensorEntry]:
    prefix, _, name = renamed.partition(".{}.")
    part, _, kind = name.rpartition(".")
    expected = ["experts", "rows", "columns"][: 2 if kind == "bias" else 3]
    if len(entry.shape) != len(expected) or entry.shape[0] > MOST_EXPERTS:
        raise ModelFileError(
            f"{file.path.name} has tensor {entry.name} of {list(entry.shape)}; experts are [{', '.join(expected)}]."
        )
    return cut(entry, prefix, (part,), kind)


def _renamed(name: str, family: Family) -> str:
    block = re.fullmatch(r"blk\.(\d+)\.(.+)", name)
    if block is None:
        stem, _, kind = name.rpartition(".")
        return f"{_WHOLE[stem]}.{kind}" if stem in _WHOLE else name
    stem, _, kind = block[2].rpartition(".")
    if stem not in family.block:
        # Of layers that predict further tokens, which are not used.
        return f"model.layers.{block[1]}.{block[2]}" if stem.startswith("nextn.") else name
    ours = family.block[stem]
    return f"model.layers.{block[1]}.{ours}" if stem in _BARE else f"model.layers.{block[1]}.{ours}.{kind}"


def name_in_file(name: str, family: Family) -> str:
    """What a checkpoint's tensor is called in a file of a family; an expert's, what that of all of them is called."""
    theirs = {ours: theirs for theirs, ours in {**family.block, **_WHOLE}.items()}
    if block := re.fullmatch(r"model\.layers\.(\d+)\.(.+)\.(weight|bias)", name):
        return f"blk.{block[1]}.{theirs[re.sub(_OF_AN_EXPERT, '.experts.{}.', block[2])]}.{block[3]}"
    stem, _, kind = name.rpartition(".")
    return f"{theirs[stem]}.{kind}"


def llama3_divisors(head_dim: int, theta: float, factor: float, low: float, high: float, original: int) -> list[float]:
    """What each frequency is divided by; see `kernels.rope`."""
    divisors = []
    for pair in range(head_dim // 2):
        wavelength = 2 * math.pi * theta ** (2 * pair / head_dim)
        ramp = (original / wavelength - low) / (high - low)
        between = 1 / ((1 - ramp) / factor + ramp) if 0 <= ramp <= 1 else 1.0
        divisors.append(factor if wavelength > original / low else between)
    return divisors
