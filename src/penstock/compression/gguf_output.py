"""A model that was quantized block by block as one GGUF file."""

import re
import shutil
import tempfile
from array import array
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from penstock.compression.files import PARTIAL, Output, replace_file
from penstock.compression.reach import mixtures
from penstock.core.errors import ConfigurationError, ModelFileError, TokenizerError, UnsupportedModel
from penstock.core.text_files import shown
from penstock.kernels.places import LinearRope, Llama3Rope
from penstock.kernels.signature import HeadLayout
from penstock.loading.checkpoint import Checkpoint
from penstock.loading.end_tokens import end_tokens
from penstock.loading.gguf import PLAIN, SUFFIX, GgufFile
from penstock.loading.gguf_families import FAMILIES, MIXTRAL, Family
from penstock.loading.gguf_model import ONE_COLUMN, ROUTER, config_of, name_in_file
from penstock.loading.gguf_rope import ROPE_FACTORS, llama3_divisors
from penstock.loading.gguf_writer import NamedTensor, write_gguf
from penstock.loading.safetensors import TensorEntry, read_header
from penstock.loading.tensors import read_tensor
from penstock.models import mistral
from penstock.models.declaration import ModelDeclaration
from penstock.models.registry import declare
from penstock.quantization.recipe import Recipe
from penstock.text.gguf_metadata import tokenizer_metadata
from penstock.text.tokenizer import find_tokenizer

_WRITTEN = ("llama", "qwen2", "qwen3", "gemma3", "qwen2moe", "qwen3moe", "olmoe")
# Those that are written, by their names here; Mistral is a Llama there, and so is Mixtral.
_ARCHITECTURES = {FAMILIES[name].architecture: (name, FAMILIES[name]) for name in _WRITTEN} | {
    mistral.ARCHITECTURE: ("llama", FAMILIES["llama"]),
    MIXTRAL.architecture: ("llama", MIXTRAL),
}
# What files say of most of their matrices, by number.
_FILE_TYPES = {"Q4_0": 2, "Q8_0": 7, "Q4_K": 14, "Q6_K": 18}
# Names of tensors of all experts have this.
_OF_EXPERTS = "_exps."
_KINDS = {dtype: kind for kind, dtype in PLAIN.items()}


@dataclass(frozen=True, slots=True)
class Description:
    """What a file says of a model before its weights.

    Attributes:
        architecture: as GGUF files name it.
        family: what tensors are called there, and in what order their rows are.
        divisors: of the frequencies of rotary positions; empty where there are none.
    """

    architecture: str
    family: Family
    metadata: Mapping[str, Any]
    divisors: tuple[float, ...]


def parts_of(out: Path) -> Path:
    """Where blocks are until there is a file of them."""
    return out.with_name(out.name + ".parts")


def check_file(out: Path) -> None:
    """Raise ConfigurationError where `out` cannot become a GGUF file."""
    if out.suffix != SUFFIX:
        raise ConfigurationError(f"--out {out} is to be a GGUF file; give a name that ends with {SUFFIX}.")
    if out.exists():
        raise ConfigurationError(f"{out} is there already; give a file that can be made.")


def describe(checkpoint: Checkpoint, declaration: ModelDeclaration, kind: str) -> Description:
    """What a file with matrices of `kind` says. Raises ConfigurationError where a file cannot say what the model is."""
    if declaration.architecture not in _ARCHITECTURES:
        raise ConfigurationError(
            f"GGUF files of {declaration.architecture} are not written, but of {', '.join(_ARCHITECTURES)}; give "
            "another --format."
        )
    architecture, family = _ARCHITECTURES[declaration.architecture]
    said = {f"{architecture}.{name}": value for name, value in _sizes(declaration, architecture).items()}
    metadata = {
        "general.architecture": architecture,
        "general.name": shown(checkpoint.path.resolve().name),
        "general.quantization_version": 2,
        "general.file_type": _FILE_TYPES[kind],
        **said,
    }
    rope = _full(declaration).rope
    scaling, divisors = rope.scaling, list[float]()
    if isinstance(scaling, Llama3Rope):
        sizes = scaling.factor, scaling.low_factor, scaling.high_factor, scaling.original_context
        divisors = llama3_divisors(rope.head_dim, rope.theta, *sizes)
    try:
        tokenizer = find_tokenizer(checkpoint.path, declaration.vocab_size)
        if tokenizer is None:
            metadata["tokenizer.ggml.model"] = "none"
        else:
            metadata |= tokenizer_metadata(tokenizer, declaration.vocab_size)
    except TokenizerError as error:
        raise ConfigurationError(f"{error} Give another --format.") from None
    metadata |= _ends(end_tokens(checkpoint, tokenizer, declaration.vocab_size).ids, metadata)
    found = Description(architecture, family, metadata, tuple(divisors))
    _try(found, declaration)
    return found


def write_file(
    parts: Output, description: Description, declaration: ModelDeclaration, recipe: Recipe, out: Path
) -> None:
    """Put the blocks together. Raises ConfigurationError where the file cannot be written."""
    unfinished = out.with_name(out.name + PARTIAL)
    tensors = list(_tensors(parts, description, declaration, recipe))
    try:
        with unfinished.open("wb") as stream:
            write_gguf(stream, description.metadata, tensors)
        replace_file(unfinished, out)
    except OSError as error:
        unfinished.unlink(missing_ok=True)
        raise ConfigurationError(
            f"{out} cannot be written: {error.strerror}. What is finished stays in {parts.path} for another try."
        ) from None
    shutil.rmtree(parts.path)


def _full(declaration: ModelDeclaration) -> Any:
    """The attention of a layer that sees everything, or of the first where none does."""
    layers = [block.attention for block in declaration.decoder.blocks]
    return next((layer for layer in layers if layer.window is None), layers[0])


def _sizes(declaration: ModelDeclaration, architecture: str) -> dict[str, Any]:
    decoder, attention = declaration.decoder, _full(declaration)
    heads, rope = attention.heads, attention.rope
    assert decoder.norm is not None, "what generates has a final norm"
    found: dict[str, Any] = {
        "vocab_size": decoder.vocab_size,
        "block_count": len(decoder.blocks),
        "context_length": declaration.max_position_embeddings,
        "embedding_length": decoder.width,
        "feed_forward_length": decoder.blocks[0].mlp.inner_width,
        "attention.head_count": heads.query_heads,
        "attention.head_count_kv": heads.kv_heads,
        "attention.key_length": heads.head_dim,
        "attention.value_length": heads.head_dim,
        "attention.layer_norm_rms_epsilon": decoder.norm.eps,
        "rope.dimension_count": heads.head_dim,
        "rope.freq_base": rope.theta,
    }
    if isinstance(rope.scaling, LinearRope):
        found |= {"rope.scaling.type": "linear", "rope.scaling.factor": rope.scaling.factor}
    if architecture == "gemma3":
        found |= _sliding(declaration)
    return found | _of_experts(declaration)


def _of_experts(declaration: ModelDeclaration) -> dict[str, Any]:
    """How many experts layers have, and of what width; nothing where there are none."""
    mixture = next(iter(mixtures(declaration.decoder.blocks)), None)
    if mixture is None:
        return {}
    found = {
        "expert_count": mixture.routing.experts,
        "expert_used_count": mixture.routing.chosen,
        "expert_feed_forward_length": mixture.inner_width,
    }
    if mixture.shared is not None:
        found["expert_shared_feed_forward_length"] = mixture.shared.inner_width
    return found


def _sliding(declaration: ModelDeclaration) -> dict[str, Any]:
    """Of Gemma: its window, the rotary positions in it, and the bound of its logits."""
    found: dict[str, Any] = {}
    layers = [block.attention for block in declaration.decoder.blocks]
    local = next((layer for layer in layers if layer.window is not None), None)
    if local is not None:
        rope = local.rope
        assert rope is not None, "heads of Gemma turn"
        found |= {"attention.sliding_window": local.window, "rope.freq_base_swa": rope.theta}
    if declaration.decoder.logit_cap is not None:
        found["final_logit_softcapping"] = declaration.decoder.logit_cap
    return found


def _ends(ids: tuple[int, ...], metadata: Mapping[str, Any]) -> dict[str, int]:
    """Tokens that end an output beside the one that is named. Raises ConfigurationError where there are too many."""
    first = metadata.get("tokenizer.ggml.eos_token_id")
    others = [token for token in ids if token != first]
    names = ("eot", "eom") if first is not None else ("eos", "eot", "eom")
    if len(others) > len(names):
        raise ConfigurationError(
            f"{len(others) + 1} tokens end the model's outputs, and a GGUF file can name three of them; give "
            "another --format."
        )
    return {f"tokenizer.ggml.{name}_token_id": token for name, token in zip(names, others, strict=False)}


def _try(description: Description, declaration: ModelDeclaration) -> None:
    """Read back what is said. Raises ConfigurationError where that is another model."""
    divisors = array("f", description.divisors).tobytes()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "model.gguf"
        file.write_bytes(divisors)
        shapes = {part.tensor: part.shape for spec in declaration.weights for part in spec.parts}
        entries = {
            stored: TensorEntry(stored, "float32", _shape(stored, [shapes[name] for name in names]), file, 0, 0)
            for stored, names in _together(shapes, description.family).items()
        }
        if divisors:
            shape = (len(description.divisors),)
            entries[ROPE_FACTORS] = TensorEntry(ROPE_FACTORS, "float32", shape, file, 0, len(divisors))
        try:
            found = declare(config_of(GgufFile(file, description.metadata, entries)))
        except (ModelFileError, UnsupportedModel) as error:
            raise ConfigurationError(
                f"A GGUF file cannot say what this model is; give another --format. Read back, {error}"
            ) from None
    if found.decoder != declaration.decoder:
        raise ConfigurationError(
            "A GGUF file cannot say what this model is: it has windows, rotary positions, scores, activations or "
            "layers with experts that the format has no name for; give another --format."
        )


def _tensors(
    parts: Output, description: Description, declaration: ModelDeclaration, recipe: Recipe
) -> Iterator[NamedTensor]:
    """All of the file's: matrices in blocks, others as they were, vectors in float32."""
    divisors = description.divisors
    if divisors:
        yield NamedTensor(ROPE_FACTORS, "F32", (len(divisors),), lambda: torch.tensor(divisors))
    shapes = {part.tensor: part.shape for spec in declaration.weights for part in spec.parts}
    headers = (read_header(parts.shard(index)) for index in range(parts.count))
    for header in headers:
        for stored, names in _together(header, description.family).items():
            entries, each = [header[name] for name in names], shapes[names[0]]
            shape = _shape(stored, [each] * len(names))
            plain = "F32" if len(shape) == 1 or ROUTER in stored else _KINDS.get(entries[0].dtype)
            read = partial(_in_file_order, entries, description.family, _full(declaration).heads)
            yield NamedTensor(stored, plain or recipe.blocks_of(each[1]), shape, read)


def _together(names: Iterable[str], family: Family) -> dict[str, list[str]]:
    """By the name in the file, the tensors that it is made of: one, or one of each expert in their order."""
    found: dict[str, list[str]] = {}
    for name in names:
        found.setdefault(name_in_file(name, family), []).append(name)
    # Headers are in order of names, in which 10 is before 2.
    return {stored: sorted(each, key=_expert) for stored, each in found.items()}


def _expert(name: str) -> int:
    match = re.search(r"\.experts\.(\d+)\.", name)
    return 0 if match is None else int(match[1])


def _shape(stored: str, shapes: list[tuple[int, ...]]) -> tuple[int, ...]:
    """In the file. A projection to one column is a vector there."""
    if stored.endswith(ONE_COLUMN):
        return shapes[0][1:]
    return (len(shapes), *shapes[0]) if _OF_EXPERTS in stored else shapes[0]


def _in_file_order(entries: list[TensorEntry], family: Family, heads: HeadLayout) -> Tensor:
    """Bytes, or numbers, as a file has them: the reverse of `gguf_model.entries_of`."""
    if len(entries) > 1:
        return torch.stack([read_tensor(entry) for entry in entries])
    entry, tensor = entries[0], read_tensor(entries[0])
    stored = name_in_file(entry.name, family)
    if tensor.dim() == 1 or ROUTER in stored:
        tensor = tensor.float()
    if family.shifted and entry.name.endswith("norm.weight"):
        tensor = tensor + 1.0
    counts = {"q_proj": heads.query_heads, "k_proj": heads.kv_heads}
    count = counts.get(entry.name.split(".")[-2]) if family.paired else None
    if count is None:
        return tensor
    halves: Tensor = tensor.unflatten(0, (count, 2, -1))
    return halves.transpose(1, 2).flatten(0, 2)
