"""A GGUF file as the checkpoint that it was made from: its metadata as config.json, its tensors by their own names."""

import math
import re
from array import array
from dataclasses import replace
from typing import Any

from penstock.core.errors import ModelFileError, UnsupportedModel
from penstock.layers.weights import HeadRows
from penstock.loading.experts import MOST_EXPERTS, cut
from penstock.loading.gguf import GgufFile, Texts
from penstock.loading.gguf_families import Family, family_of
from penstock.loading.gguf_rope import rope_scaling
from penstock.loading.gguf_values import Values
from penstock.loading.safetensors import TensorEntry

# What chooses experts, and what a shared expert is multiplied by.
ROUTER, ONE_COLUMN = "ffn_gate_inp", "ffn_gate_inp_shexp.weight"
# Vectors that are no projection's, whose names in a checkpoint have no ending.
_BARE = ("exp_probs_b", "attn_sinks")
# Matrices of all heads, which a file has one by one.
_OF_HEADS = ("attn_k_b.weight", "attn_v_b.weight")
_OF_AN_EXPERT = r"\.experts\.\d+\."
# The kind of special tokens, and those that end a turn in whatever model has them; files often name only one.
_CONTROL = 3
_ENDS_HARMONY = "<|return|>"
# Files of Gemma 4 have it among tokens that are shown; what follows is for whom the model called to write.
_SHOWN, _ENDS_GEMMA4 = 4, "<|tool_response>"
_ENDS = {
    "<|eot_id|>",
    "<|eom_id|>",
    "<|im_end|>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<end_of_turn>",
    "<turn|>",
    _ENDS_GEMMA4,
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
        "intermediate_size": None if "feed_forward_length" in family.varied else values.integer("feed_forward_length"),
        "num_hidden_layers": values.integer("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": _kv_heads(values, family, heads),
        "head_dim": values.integer("attention.key_length", width // max(1, heads)),
        "max_position_embeddings": values.integer("context_length"),
        "rms_norm_eps": values.number(family.eps),
        "rope_theta": values.number("rope.freq_base", 10000.0),
        "tie_word_embeddings": "output.weight" not in file.tensors,
    }
    for key in family.sizes:
        size = values.integer(key, config["head_dim"])
        if size != config["head_dim"]:
            raise UnsupportedModel(
                f"{file.path.name} has {name}.{key} = {size}; implemented: that of its keys, {config['head_dim']}."
            )
    config |= family.further(values, config)
    if values.has_tensor("ffn_gate.bias"):
        config["mlp_bias"] = True
    if "rope_scaling" not in config and "rope_parameters" not in config:
        config["rope_scaling"] = rope_scaling(values, config)
    named = {key: family.keys.get(key, key) for key in config}
    config = {theirs: config[key] for key, theirs in named.items() if theirs is not None}
    ends = _ends(file)
    if ends:
        config["eos_token_id"] = ends
    return config


def _kv_heads(values: Values, family: Family, heads: int) -> Any:
    """How many there are of keys; None where layers differ in that."""
    name = "attention.head_count_kv"
    return None if name in family.varied else values.integer(name, heads)


def _ends(file: GgufFile) -> list[int]:
    """What ends an output: the tokens that the file names for that, and those of its special ones that always do."""
    named = [file.metadata.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot", "eom")]
    ends = [token for token in named if isinstance(token, int) and not isinstance(token, bool)]
    tokens, kinds = (file.metadata.get(f"tokenizer.ggml.{name}") for name in ("tokens", "token_type"))
    if isinstance(tokens, Texts) and isinstance(kinds, array) and len(tokens) == len(kinds):
        special = (place for place, kind in enumerate(kinds) if kind == _CONTROL)
        found = {tokens[place]: place for place in special if tokens[place] in _ENDS}
        shown = (place for place, kind in enumerate(kinds) if kind == _SHOWN)
        found |= {tokens[place]: place for place in shown if tokens[place] == _ENDS_GEMMA4}
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


def entries_of(file: GgufFile) -> dict[str, TensorEntry]:
    """Every tensor by the name that it has in a checkpoint, but for what config.json says."""
    name, family = family_of(file)
    values = Values(file, name)
    heads = values.integer("attention.head_count")
    counts = (heads, _kv_heads(values, family, heads) or heads)
    found: dict[str, TensorEntry] = {}
    for original, entry in file.tensors.items():
        if original in family.factors:
            continue
        renamed = _renamed(original, family)
        if "{}" in renamed:
            found |= _of_each_expert(file, entry, renamed)
        elif "+" in renamed:
            found |= _of_each_head(file, entry, renamed, *counts)
        else:
            found[renamed] = replace(_as_theirs(file, entry, renamed, family, counts), name=renamed)
    return found


def _as_theirs(
    file: GgufFile, entry: TensorEntry, renamed: str, family: Family, counts: tuple[int, int]
) -> TensorEntry:
    """In the shape, and with the numbers and the order of rows, that a checkpoint has."""
    shape = entry.shape
    if entry.name.endswith(ONE_COLUMN):
        # A projection to one column is a vector there.
        shape = (1, *shape)
    elif entry.name.endswith(_OF_HEADS):
        shape = (math.prod(shape[:-1]), shape[-1])
    stems = zip((".self_attn.q_proj.", ".self_attn.k_proj."), counts, strict=True)
    heads = next((count for stem, count in stems if stem in renamed), 0)
    rows = _rows(file, entry, heads) if heads and family.paired else None
    shift = -1.0 if family.shifted and renamed.endswith("norm.weight") else 0.0
    return replace(entry, rows=rows, shift=shift, shape=shape)


def _rows(file: GgufFile, entry: TensorEntry, heads: int) -> HeadRows:
    """The order of rows of heads whose neighbours turn together."""
    if heads < 1 or entry.shape[0] % (2 * heads):
        raise ModelFileError(
            f"{file.path.name} has tensor {entry.name} of {entry.shape[0]} rows, no pairs of {heads} heads."
        )
    size = entry.shape[0] // heads
    return HeadRows(heads, size, turned=size, paired=True)


def _of_each_head(
    file: GgufFile, entry: TensorEntry, renamed: str, query_heads: int, kv_heads: int
) -> dict[str, TensorEntry]:
    """Queries, keys and values, whose rows follow one another, as tensors of their own."""
    rows, heads = entry.shape[0], (query_heads, kv_heads, kv_heads)
    if sum(heads) < 1 or rows % sum(heads):
        raise ModelFileError(f"{file.path.name} has tensor {entry.name} of {rows} rows, none of {sum(heads)} heads.")
    prefix, parts, kind = renamed.rsplit(".", 2)
    size, first = rows // sum(heads), 0
    found = {}
    for part, count in zip(parts.split("+"), heads, strict=True):
        each, name = entry.nbytes // rows * size * count, f"{prefix}.{part}.{kind}"
        shape, offset = (count * size, *entry.shape[1:]), entry.offset + first
        found[name] = replace(entry, name=name, shape=shape, offset=offset, nbytes=each)
        first += each
    return found


def _of_each_expert(file: GgufFile, entry: TensorEntry, renamed: str) -> dict[str, TensorEntry]:
    prefix, _, name = renamed.partition(".{}.")
    part, _, kind = name.rpartition(".")
    parts = tuple(part.split("+"))
    expected = ["experts", "rows", "columns"][: 2 if kind == "bias" else 3]
    sound = len(entry.shape) == len(expected) and entry.shape[0] <= MOST_EXPERTS
    if not sound or entry.shape[1] % len(parts):
        raise ModelFileError(
            f"{file.path.name} has tensor {entry.name} of {list(entry.shape)}; experts are [{', '.join(expected)}]."
        )
    return cut(entry, prefix, parts, kind)


def _renamed(name: str, family: Family) -> str:
    block = re.fullmatch(r"blk\.(\d+)\.(.+)", name)
    if block is None:
        stem, _, kind = name.rpartition(".")
        return f"{family.whole[stem]}.{kind}" if stem in family.whole else name
    if block[2] in family.block:
        return f"{family.layers}.{block[1]}.{family.block[block[2]]}"
    stem, _, kind = block[2].rpartition(".")
    if stem not in family.block:
        # Of layers that predict further tokens, which are not used.
        return f"{family.layers}.{block[1]}.{block[2]}" if stem.startswith("nextn.") else name
    ours = f"{family.layers}.{block[1]}.{family.block[stem]}"
    return ours if stem in _BARE else f"{ours}.{kind}"


def name_in_file(name: str, family: Family) -> str:
    """What a checkpoint's tensor is called in a file of a family; an expert's, what that of all of them is called."""
    theirs = {ours: theirs for theirs, ours in {**family.block, **family.whole}.items()}
    if block := re.fullmatch(r"model\.layers\.(\d+)\.(.+)\.(weight|bias)", name):
        return f"blk.{block[1]}.{theirs[re.sub(_OF_AN_EXPERT, '.experts.{}.', block[2])]}.{block[3]}"
    stem, _, kind = name.rpartition(".")
    return f"{theirs[stem]}.{kind}"
