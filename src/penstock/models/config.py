"""Reading config.json: every key is understood, known to change nothing, or refused by name.

Keys that no family reads are ignored where their value switches something off (null, false, empty) or where they are
listed in INERT; any other is refused, since a value that is silently ignored gives silently wrong tokens.
"""

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from penstock.core.errors import ModelFileError, UnsupportedModel
from penstock.kernels.places import LinearRope, Llama3Rope, LongRope, ProportionalRope, RopeScaling, RopeSpec, YarnRope
from penstock.kernels.signature import ActivationName, PlainActivationName

# Metadata, training settings and generation defaults: none changes what a forward pass computes.
INERT = frozenset(
    {
        "_attn_implementation_autoset",
        "_name_or_path",
        "_sliding_window_pattern",
        "attention_dropout",
        "attn_pdrop",
        "auto_map",
        "bad_words_ids",
        "begin_suppress_tokens",
        "boi_token_index",
        "bos_token_id",
        "cache_implementation",
        "chunk_size_feed_forward",
        "cls_token_id",
        "decoder_start_token_id",
        "diversity_penalty",
        "do_sample",
        "early_stopping",
        "embd_pdrop",
        "encoder_no_repeat_ngram_size",
        "eoi_token_index",
        "eos_token_id",
        "epsilon_cutoff",
        "eta_cutoff",
        "exponential_decay_length_penalty",
        "finetuning_task",
        "forced_bos_token_id",
        "forced_eos_token_id",
        "id2label",
        "image_token_index",
        "initializer_range",
        "is_llama_config",
        "keys_to_ignore_at_inference",
        "label2id",
        "length_penalty",
        "max_length",
        "max_new_tokens",
        "max_sequence_length",
        "min_length",
        "min_p",
        "mm_tokens_per_image",
        "name_or_path",
        "no_repeat_ngram_size",
        "num_beam_groups",
        "num_beams",
        "num_return_sequences",
        "output_attentions",
        "output_hidden_states",
        "output_router_logits",
        "output_scores",
        "pad_token_id",
        "penalty_alpha",
        "prefix",
        "pretraining_tp",
        "problem_type",
        "remove_invalid_values",
        "renormalize_logits",
        "repetition_penalty",
        "resid_pdrop",
        "return_dict",
        "router_aux_loss_coef",
        "router_jitter_noise",
        "return_dict_in_generate",
        "sep_token_id",
        "suppress_tokens",
        "task_specific_params",
        "temperature",
        "tf_legacy_loss",
        "tokenizer_class",
        "tokenizer_model_max_length",
        "top_k",
        "top_p",
        "torchscript",
        "transformers.js_config",
        "transformers_version",
        "typical_p",
        "unsloth_fixed",
        "unsloth_version",
        "use_bfloat16",
        "use_cache",
    }
)

_ACTIVATIONS: dict[str, ActivationName] = {
    "silu": "silu",
    "swish": "silu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu": "gelu",
}
_DTYPES = ("float32", "bfloat16", "float16")
_LAYER_TYPES = ("full_attention", "sliding_attention")
_ABSENT = object()
# Above any real size, and small enough that products of a few of them and their roots are computed without overflow.
_LARGEST_INTEGER = 2**31 - 1
_LONGEST_SHOWN = 80


class ConfigReader:
    """Takes typed values out of a configuration and remembers which keys were asked for.

    A missing key takes its default; null counts as missing except for `optional_integer` and `optional_number`.
    Errors name the key, its value, and what is accepted.

    Attributes:
        family: whose configuration it is.
    """

    def __init__(self, values: Mapping[str, Any], family: str, path: str = "") -> None:
        self._values = values
        self.family = family
        self._path = path
        self._read: set[str] = set()

    def integer(self, key: str, default: int | None = None, *, largest: int = _LARGEST_INTEGER) -> int:
        """An integer from 1 to `largest`; required where there is no default."""
        value = self._take(key, default)
        return self._positive_integer(key, value, largest)

    def optional_integer(self, key: str, default: int | None) -> int | None:
        """A positive integer or null."""
        value = self._take(key, _ABSENT, null_counts=True)
        if value is _ABSENT:
            return default
        return None if value is None else self._positive_integer(key, value)

    def number(self, key: str, default: float | None = None) -> float:
        """A positive finite number; required where there is no default."""
        return self._positive_number(key, self._take(key, default))

    def optional_number(self, key: str) -> float | None:
        """A positive finite number, or None where it is missing or null."""
        value = self._take(key, _ABSENT)
        return None if value is _ABSENT else self._positive_number(key, value)

    def number_or_zero(self, key: str) -> float:
        """A finite number of at least 0; 0 where it is missing or null."""
        value = self._take(key, 0)
        return 0.0 if value == 0 and not isinstance(value, bool) else self._positive_number(key, value)

    def numbers(self, key: str) -> tuple[float, ...]:
        """A list of positive finite numbers, which is required."""
        value = self._take(key, None)
        if not isinstance(value, list):
            raise self._malformed(key, value, "a list of numbers")
        return tuple(self._positive_number(key, item) for item in value)

    def flag(self, key: str, default: bool) -> bool:
        """The value of `key`. Raises ModelFileError where it is neither true nor false."""
        value = self._take(key, default)
        if not isinstance(value, bool):
            raise self._malformed(key, value, "true or false")
        return value

    def mapping(self, key: str) -> Mapping[str, Any] | None:
        """An object, or None where it is missing or null."""
        value = self._take(key, _ABSENT)
        if value is _ABSENT:
            return None
        if not isinstance(value, Mapping):
            raise self._malformed(key, value, "an object")
        return value

    def integers(self, key: str) -> tuple[int, ...] | None:
        """A list of integers of at least 0, or None where it is missing or null."""
        value = self._take(key, _ABSENT)
        if value is _ABSENT:
            return None
        whole = isinstance(value, list) and all(isinstance(item, int) and not isinstance(item, bool) for item in value)
        if not whole or any(not 0 <= item <= _LARGEST_INTEGER for item in value):
            raise self._malformed(key, value, f"a list of integers from 0 to {_LARGEST_INTEGER}")
        return tuple(value)

    def strings(self, key: str) -> tuple[str, ...] | None:
        """A list of strings, or None where it is missing or null."""
        value = self._take(key, _ABSENT)
        if value is _ABSENT:
            return None
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self._malformed(key, value, "a list of strings")
        return tuple(value)

    def choice(self, key: str, accepted: Sequence[str], default: str | None = None) -> str:
        """One of the strings that are implemented."""
        value = self._take(key, default)
        if not isinstance(value, str) or value not in accepted:
            raise self.refuse(key, value, f"implemented: {', '.join(accepted)}")
        return value

    def count(self, key: str, default: int) -> int:
        """An integer of at least 0."""
        value = self._take(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _LARGEST_INTEGER:
            raise self._malformed(key, value, f"an integer from 0 to {_LARGEST_INTEGER}")
        return value

    def ignore(self, *keys: str) -> None:
        """Count `keys` as read: the caller knows that they change nothing here."""
        self._read.update(keys)

    def refuse_unread(self) -> None:
        """Raise UnsupportedModel for keys that were not asked for and may change results."""
        for key, value in self._values.items():
            switched_off = value is None or value is False or value in ("", [], {})
            if key in self._read or key in INERT or switched_off:
                continue
            raise self.refuse(key, value, "remove the key if it does not change what the model computes")

    def refuse(self, key: str, value: Any, hint: str) -> UnsupportedModel:
        """The error for a value that the code does not implement."""
        found = f"{self._path}{key} = {_shown(value)}"
        return UnsupportedModel(f"config.json has {found}, which is not implemented for {self.family} ({hint}).")

    def _take(self, key: str, default: Any, *, null_counts: bool = False) -> Any:
        self._read.add(key)
        value = self._values.get(key, _ABSENT)
        if value is _ABSENT or (value is None and not null_counts):
            value = default
        if value is None and not null_counts:
            raise ModelFileError(f"config.json has no {self._path}{key}, which {self.family} models need.")
        return value

    def _positive_integer(self, key: str, value: Any, largest: int = _LARGEST_INTEGER) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= largest:
            raise self._malformed(key, value, f"an integer from 1 to {largest}")
        return value

    def _positive_number(self, key: str, value: Any) -> float:
        numeric = isinstance(value, (int, float)) and not isinstance(value, bool)
        # An integer may be too large for a float; comparing it with one is exact.
        if not numeric or not 0 < value <= sys.float_info.max:
            raise self._malformed(key, value, f"a number above 0 and at most {sys.float_info.max:.2g}")
        return float(value)

    def _malformed(self, key: str, value: Any, expected: str) -> ModelFileError:
        return ModelFileError(f"config.json has {self._path}{key} = {_shown(value)}, but it must be {expected}.")


def _shown(value: Any) -> str:
    try:
        text = repr(value)
    except RecursionError:
        # It was not too deep to be parsed, a few calls further out.
        text = f"a {type(value).__name__} of too many levels"
    return text if len(text) <= _LONGEST_SHOWN else f"{text[: _LONGEST_SHOWN - 3]}..."


def read_dtype(reader: ConfigReader) -> str:
    """The type of the stored weights; `torch_dtype` is the older key. float32 where neither says."""
    older = reader.choice("torch_dtype", _DTYPES, "float32")
    return reader.choice("dtype", _DTYPES, older)


def read_activation(reader: ConfigReader, key: str, default: str) -> ActivationName:
    """The activation of the gate that `key` names."""
    return _ACTIVATIONS[reader.choice(key, tuple(_ACTIVATIONS), default)]


def read_plain_activation(reader: ConfigReader, key: str, default: str) -> PlainActivationName:
    """The activation that `key` names, of a layer without gates."""
    accepted: dict[str, PlainActivationName] = {**_ACTIVATIONS, "relu": "relu"}
    return accepted[reader.choice(key, tuple(accepted), default)]


def read_layer_types(reader: ConfigReader, layers: int) -> tuple[bool, ...] | None:
    """For each layer whether its attention slides, or None where the configuration does not say."""
    kinds = reader.strings("layer_types")
    if kinds is None:
        return None
    if len(kinds) != layers:
        raise ModelFileError(f"config.json has {len(kinds)} layer_types for {layers} layers (num_hidden_layers).")
    for kind in kinds:
        if kind not in _LAYER_TYPES:
            raise reader.refuse("layer_types", kind, f"implemented: {', '.join(_LAYER_TYPES)}")
    return tuple(kind == "sliding_attention" for kind in kinds)


def read_rope(
    reader: ConfigReader,
    head_dim: int,
    max_positions: int,
    *,
    original: int | None = None,
    partial: float | None = None,
    base: float = 10000.0,
) -> RopeSpec:
    """Rotary settings of a model with one kind of them, under `rope_parameters` or the older two keys.

    `original` is the family's context before it was made longer, where a file does not say it; `partial`, the
    part of each head that turns where a file does not say it, in families that can turn a part; `base`, theta likewise.
    """
    newer, older = reader.mapping("rope_parameters"), reader.mapping("rope_scaling")
    theta = reader.number("rope_theta", base)
    name, scaling = ("rope_scaling", older) if older else ("rope_parameters", newer or {})
    if newer and older:
        theta = ConfigReader(newer, reader.family, "rope_parameters.").number("rope_theta", theta)
    # Older files have these two beside, not within. Of a context that both have, transformers takes the outer one.
    turned, context = "partial_rotary_factor", "original_max_position_embeddings"
    within = scaling.get(context)
    original = reader.optional_integer(context, None) or (original if within is None else None)
    given = {turned: reader.number(turned, 1.0 if partial is None else partial), **scaling}
    if original is not None:
        given[context] = original
    return rope_spec(given, reader.family, name, head_dim, theta, max_positions, partial=partial is not None)


def split_query_scale(
    config: Mapping[str, Any], family: str, usual: Mapping[str, Any], path: str = ""
) -> tuple[dict[str, Any], tuple[float, int] | None]:
    """Rotary settings, `usual` where there are none, and what they say of queries: (beta, context) of `QueryScale`.

    `path` is where in config.json the configuration is.
    """
    settings = dict(config.get("rope_parameters") or config.get("rope_scaling") or usual)
    reader = ConfigReader(settings, family, f"{path}rope_parameters.")
    beta = reader.optional_number("llama_4_scaling_beta")
    context = reader.optional_integer("original_max_position_embeddings", None)
    if beta is not None and context is None:
        raise reader.refuse("llama_4_scaling_beta", beta, "original_max_position_embeddings must be there, too")
    # The second says once more what config.json says.
    for key in ("llama_4_scaling_beta", "max_position_embeddings"):
        settings.pop(key, None)
    return settings, None if beta is None or context is None else (beta, context)


def read_ropes_by_type(
    reader: ConfigReader,
    head_dim: int,
    max_positions: int,
    *,
    full_head_dim: int | None = None,
    local_key: str = "rope_theta",
    thetas: tuple[float, float] = (10000.0, 10000.0),
) -> tuple[RopeSpec, RopeSpec]:
    """Rotary settings of layers with a window, and of those without; the older `rope_scaling` is of the latter only.

    `full_head_dim` is the size of the latter's heads where it is another; `local_key` is where older files have the
    base of the former; `thetas` are the family's defaults.
    """
    by_type = reader.mapping("rope_parameters") or {}
    by_type_reader = ConfigReader(by_type, reader.family, "rope_parameters.")
    scaling = reader.mapping("rope_scaling") or {}
    bases = {
        "sliding_attention": reader.number(local_key, thetas[0]),
        "full_attention": reader.number("rope_theta", thetas[1]),
    }
    for key, value in by_type.items():
        if key not in bases:
            raise reader.refuse(f"rope_parameters.{key}", value, f"it is read by layer type: {', '.join(bases)}")
    specs = []
    for kind, theta in bases.items():
        parameters, size = dict(by_type_reader.mapping(kind) or {}), head_dim
        if kind == "full_attention":
            parameters.update(scaling)
            size = full_head_dim or head_dim
        specs.append(rope_spec(parameters, reader.family, f"rope_parameters.{kind}", size, theta, max_positions))
    return specs[0], specs[1]


def rope_spec(
    parameters: Mapping[str, Any],
    family: str,
    name: str,
    head_dim: int,
    theta: float,
    max_positions: int,
    *,
    partial: bool = False,
) -> RopeSpec:
    """One kind of rotary embedding from its object `name` in config.json; `theta` is used where it has none."""
    if any(kind in parameters for kind in _LAYER_TYPES):
        raise UnsupportedModel(f"config.json has {name} by layer type, which is not implemented for {family}.")
    reader = ConfigReader(parameters, family, f"{name}.")
    kind = reader.choice("rope_type", tuple(_SCALINGS), reader.choice("type", tuple(_SCALINGS), "default"))
    theta = reader.number("rope_theta", theta)
    share = 1.0 if kind == "proportional" else reader.number("partial_rotary_factor", 1.0)
    turned = int(head_dim * share)
    if turned != head_dim and not partial:
        raise reader.refuse("partial_rotary_factor", turned / head_dim, "implemented: 1")
    if not 0 < turned <= head_dim or turned % 2:
        raise reader.refuse("partial_rotary_factor", turned / head_dim, "it must leave an even number of columns")
    scaling = _SCALINGS[kind](reader, turned, max_positions)
    # Said of where a model came from; only some scalings depend on it.
    reader.ignore("original_max_position_embeddings")
    reader.refuse_unread()
    return RopeSpec(head_dim, theta, scaling, None if turned == head_dim else turned)


def _linear(reader: ConfigReader, _turned: int, _max_positions: int) -> LinearRope:
    return LinearRope(reader.number("factor"))


def _dynamic(reader: ConfigReader, _turned: int, _max_positions: int) -> None:
    """Only contexts beyond the configured maximum change anything, and none is served."""
    reader.number("factor", 1.0)


def _llama3(reader: ConfigReader, _turned: int, max_positions: int) -> Llama3Rope:
    scaling = Llama3Rope(
        reader.number("factor"),
        reader.number("low_freq_factor"),
        reader.number("high_freq_factor"),
        reader.integer("original_max_position_embeddings", max_positions),
    )
    if scaling.high_factor <= scaling.low_factor:
        raise reader.refuse("high_freq_factor", scaling.high_factor, "it must be above low_freq_factor")
    return scaling


def _yarn(reader: ConfigReader, _turned: int, max_positions: int) -> YarnRope:
    original = reader.integer("original_max_position_embeddings", max_positions)
    factor = reader.number("factor", max_positions / original)
    # transformers takes a 0 of these four as if nothing were said.
    part, all_parts = reader.number_or_zero("mscale"), reader.number_or_zero("mscale_all_dim")
    usual = mscale(factor, part) / mscale(factor, all_parts) if part and all_parts else mscale(factor, 1.0)
    return YarnRope(
        factor,
        original,
        reader.number("attention_factor", usual),
        reader.number_or_zero("beta_fast") or 32.0,
        reader.number_or_zero("beta_slow") or 1.0,
        reader.flag("truncate", True),
    )


def mscale(factor: float, part: float) -> float:
    """How much wider scores are spread over a context that is longer by `factor` (YaRN, section 3.4)."""
    return 1.0 if factor <= 1 else 0.1 * part * math.log(factor) + 1.0


def _longrope(reader: ConfigReader, turned: int, max_positions: int) -> LongRope:
    """Two lists: which one holds depends on the longest context that is served (`LongRope.up_to`)."""
    original = reader.integer("original_max_position_embeddings", max_positions)
    factor = reader.number("factor", max_positions / original)
    # A context of one position says nothing of how much wider scores are spread over a longer one.
    usual = 1.0 if factor <= 1 or original == 1 else math.sqrt(1 + math.log(factor) / math.log(original))
    lists = {key: reader.numbers(key) for key in ("short_factor", "long_factor")}
    for key, divisors in lists.items():
        if len(divisors) != turned // 2:
            raise reader.refuse(key, divisors, f"it must have {turned // 2} numbers")
    amplitude = reader.number("attention_factor", usual)
    if max_positions <= original:
        return LongRope(lists["short_factor"], amplitude)
    return LongRope(lists["long_factor"], amplitude, lists["short_factor"], original)


def _proportional(reader: ConfigReader, head_dim: int, _max_positions: int) -> ProportionalRope:
    share = reader.number("partial_rotary_factor", 1.0)
    if share > 1:
        raise reader.refuse("partial_rotary_factor", share, "it must be at most 1")
    return ProportionalRope(2 * int(share * head_dim // 2), reader.number("factor", 1.0))


_SCALINGS: dict[str, Callable[[ConfigReader, int, int], RopeScaling | None]] = {
    "default": lambda _reader, _turned, _positions: None,
    "linear": _linear,
    "dynamic": _dynamic,
    "llama3": _llama3,
    "yarn": _yarn,
    "proportional": _proportional,
    "longrope": _longrope,
    "su": _longrope,
}
