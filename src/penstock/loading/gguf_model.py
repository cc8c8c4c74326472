"""A GGUF file as the checkpoint that it was made from: its metadata as config.json, its tensors by their own names."""

import math
import re
import reprlib
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from penstock.core.errors import ModelFileError, UnsupportedModel
from penstock.loading.gguf import GgufFile, Texts
from penstock.loading.safetensors import TensorEntry

# The tensors of a block; norms behind attention and MLP are Gemma's, which calls the MLP's own one otherwise.
_BLOCK = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_GEMMA_BLOCK = {
    **_BLOCK,
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_WHOLE = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
ROPE_FACTORS = "rope_freqs.weight"
# Parameters of the RoPE of all published models of Llama 3; a file has their effect only.
_LOW, _HIGH, _ORIGINAL = 1.0, 4.0, 8192
_MOST_DIVISORS = 4096
_LARGEST_GEMMA3_LAYERS = 62
# One layer in this many sees the whole context.
_GEMMA3_PATTERN = 6
# The kind of special tokens, and those that end a turn in whatever model has them; files often name only one.
_CONTROL = 3
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
}
_ABSENT = object()


@dataclass(frozen=True, slots=True)
class _Family:
    """What a GGUF architecture is among ours.

    Attributes:
        architecture: as config.json names it.
        block: names of a block's tensors.
        paired: rows of query and key heads stand beside the one that they turn with.
        shifted: norms have 1 added.
    """

    architecture: str
    block: Mapping[str, str]
    paired: bool = False
    shifted: bool = False


FAMILIES = {
    "llama": _Family("LlamaForCausalLM", _BLOCK, paired=True),
    "qwen2": _Family("Qwen2ForCausalLM", _BLOCK),
    "qwen3": _Family("Qwen3ForCausalLM", _BLOCK),
    "gemma3": _Family("Gemma3ForCausalLM", _GEMMA_BLOCK, shifted=True),
}


class _Values:
    """Metadata of an architecture, taken by name and type."""

    def __init__(self, file: GgufFile, architecture: str) -> None:
        self._file = file
        self._architecture = architecture

    def integer(self, name: str, default: Any = _ABSENT) -> Any:
        """A whole number; one for each layer only where all are the same."""
        value = self._take(name, default)
        if isinstance(value, array) and len(set(value)) == 1:
            value = value[0]
        if value is not default and (isinstance(value, bool) or not isinstance(value, int)):
            raise self.refused(name, "a whole number")
        return value

    def number(self, name: str, default: Any = _ABSENT) -> Any:
        """A number."""
        value = self._take(name, default)
        if value is not default and (isinstance(value, bool) or not isinstance(value, (int, float))):
            raise self.refused(name, "a number")
        return value

    def text(self, name: str, default: Any = _ABSENT) -> Any:
        """A text."""
        value = self._take(name, default)
        if value is not default and not isinstance(value, str):
            raise self.refused(name, "a text")
        return value

    def _take(self, name: str, default: Any) -> Any:
        value = self._file.metadata.get(f"{self._architecture}.{name}", default)
        if value is _ABSENT:
            raise ModelFileError(
                f"{self._file.path.name} has no {self._architecture}.{name}, which its architecture needs."
            )
        return value

    def refused(self, name: str, expected: str) -> UnsupportedModel:
        """The error for a value that is not implemented."""
        value = self._file.metadata.get(f"{self._architecture}.{name}")
        shown = f"an array of {len(value)}" if isinstance(value, (array, Texts)) else reprlib.repr(value)
        return UnsupportedModel(
            f"{self._file.path.name} has {self._architecture}.{name} = {shown}; implemented: {expected}."
        )


def family_of(file: GgufFile) -> tuple[str, _Family]:
    """The file's architecture, and what it is among ours. Raises UnsupportedModel."""
    name = file.metadata.get("general.architecture")
    if not isinstance(name, str) or name not in FAMILIES:
        raise UnsupportedModel(
            f"{file.path.name} is of the GGUF architecture {reprlib.repr(name)}, which is not implemented; these are: "
            f"{', '.join(FAMILIES)}."
        )
    return name, FAMILIES[name]


def config_of(file: GgufFile) -> dict[str, Any]:
    """What config.json says of the model. Raises ModelFileError and UnsupportedModel."""
    name, family = family_of(file)
    values = _Values(file, name)
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None:
        raise ModelFileError(f"{file.path.name} has no tensor token_embd.weight, so it holds no language model.")
    experts = values.integer("expert_count", 0)
    if experts:
        raise UnsupportedModel(f"{file.path.name} has {experts} experts in each layer, which is not implemented.")
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
    for key in ("rope.dimension_count", "attention.value_length"):
        size = values.integer(key, config["head_dim"])
        if size != config["head_dim"]:
            raise UnsupportedModel(
                f"{file.path.name} has {name}.{key} = {size}; implemented: that of its keys, {config['head_dim']}."
            )
    if name == "gemma3":
        config |= _gemma3(values, config)
    elif "blk.0.attn_q.bias" in file.tensors and name != "qwen2":
        config["attention_bias"] = True
    if "blk.0.ffn_gate.bias" in file.tensors:
        config["mlp_bias"] = True
    scaling = _rope_scaling(file, values, config)
    if scaling:
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
        ends += [place for place in special if tokens[place] in _ENDS]
    return list(dict.fromkeys(ends))


def _gemma3(values: _Values, config: Mapping[str, Any]) -> dict[str, Any]:
    # No file says so, but in the largest one scores are scaled by width / heads.
    largest = config["num_hidden_layers"] == _LARGEST_GEMMA3_LAYERS
    scaled_by = config["hidden_size"] // config["num_attention_heads"] if largest else config["head_dim"]
    if values.integer("attention.sliding_window_pattern", _GEMMA3_PATTERN) != _GEMMA3_PATTERN:
        raise values.refused("attention.sliding_window_pattern", str(_GEMMA3_PATTERN))
    return {
        "rope_theta": values.number("rope.freq_base", values.number("rope.global.freq_base", 1e6)),
        "hidden_activation": "gelu_pytorch_tanh",
        "sliding_window": values.integer("attention.sliding_window"),
        "query_pre_attn_scalar": scaled_by,
        "rope_local_base_freq": values.number("rope.freq_base_swa", values.number("rope.local.freq_base", 10000.0)),
        "final_logit_softcapping": values.number("final_logit_softcapping", None),
    }


def _stored(file: GgufFile) -> str:
    """The type that holds all matrices as they are: numbers made of blocks are float32."""
    kinds = {entry.dtype for entry in file.tensors.values() if len(entry.shape) > 1}
    return kinds.pop() if len(kinds) == 1 and kinds <= {"bfloat16", "float16"} else "float32"


def _rope_scaling(file: GgufFile, values: _Values, config: Mapping[str, Any]) -> dict[str, Any] | None:
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
    values = _Values(file, name)
    heads = values.integer("attention.head_count")
    counts = {"self_attn.q_proj": heads, "self_attn.k_proj": values.integer("attention.head_count_kv", heads)}
    found: dict[str, TensorEntry] = {}
    for original, entry in file.tensors.items():
        if original == ROPE_FACTORS:
            continue
        renamed = _renamed(original, family)
        paired = next((count for stem, count in counts.items() if f".{stem}." in renamed), 0)
        shift = -1.0 if family.shifted and renamed.endswith("norm.weight") else 0.0
        paired = paired if family.paired else 0
        if paired and (paired < 1 or entry.shape[0] % (2 * paired)):
            raise ModelFileError(
                f"{file.path.name} has tensor {original} of {entry.shape[0]} rows, no pairs of {paired} heads."
            )
        found[renamed] = replace(entry, name=renamed, paired_heads=paired, shift=shift)
    return found


def _renamed(name: str, family: _Family) -> str:
    if (block := re.fullmatch(r"blk\.(\d+)\.(\w+)\.(weight|bias)", name)) and block[2] in family.block:
        return f"model.layers.{block[1]}.{family.block[block[2]]}.{block[3]}"
    stem, _, kind = name.rpartition(".")
    return f"{_WHOLE[stem]}.{kind}" if stem in _WHOLE else name


def name_in_file(name: str, architecture: str) -> str:
    """What a checkpoint's tensor is called in a file of a GGUF architecture."""
    theirs = {ours: theirs for theirs, ours in {**FAMILIES[architecture].block, **_WHOLE}.items()}
    if block := re.fullmatch(r"model\.layers\.(\d+)\.(.+)\.(weight|bias)", name):
        return f"blk.{block[1]}.{theirs[block[2]]}.{block[3]}"
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
