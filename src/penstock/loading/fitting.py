"""A model as its files hold it: what config.json declares, changed where the tensors say otherwise, and told."""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase

from penstock.core.config import Reason
from penstock.core.errors import ModelFileError, UnsupportedModel
from penstock.layers.attention import SelfAttention
from penstock.layers.decoder import DecoderBlock
from penstock.layers.experts import MixtureOfExperts
from penstock.layers.latent_attention import LatentAttention
from penstock.layers.linear import Linear
from penstock.layers.mlp import GatedMlp
from penstock.loading.cache_folder import default_folder
from penstock.loading.checkpoint import WEIGHT_DTYPES, Checkpoint
from penstock.loading.comparison import are_same
from penstock.loading.folder import CONFIG
from penstock.loading.gguf import is_gguf
from penstock.loading.quantized import INERT, Entry
from penstock.loading.safetensors import TensorEntry
from penstock.models.declaration import ModelDeclaration
from penstock.models.registry import declare

_HEAD = "lm_head.weight"
_COMPARED = "compared"


def model_of(checkpoint: Checkpoint) -> ModelDeclaration:
    """The model in a checkpoint; of one that was opened without weights, what its configuration declares.

    What a file has and the configuration denies (an output head, biases) is used, and `found` says so. Raises
    ModelFileError and UnsupportedModel as `declare` does, and ModelFileError where a file cannot be read.
    """
    declaration = _declared(checkpoint)
    if not checkpoint.tensors:
        return declaration
    for fit in (_with_names, _with_experts, _with_head, _with_biases, _with_logit_bias, _with_dtype, _without_scales):
        declaration = fit(checkpoint, declaration)
    return declaration


def _declared(checkpoint: Checkpoint) -> ModelDeclaration:
    if not is_gguf(checkpoint.path):
        return declare(checkpoint.config)
    try:
        return declare(checkpoint.config)
    except (ModelFileError, UnsupportedModel) as error:
        # A GGUF file has another file's keys only in the form that they are read in.
        raise type(error)(error.message.replace(CONFIG, f"{checkpoint.path.name}, read as {CONFIG},", 1)) from None


def _told(declaration: ModelDeclaration, setting: str, value: str, why: str) -> tuple[Reason, ...]:
    return (*declaration.found, Reason(setting, value, why))


def _with_names(checkpoint: Checkpoint, declaration: ModelDeclaration) -> ModelDeclaration:
    """Beginnings of names: programs save a model as a part of another, or its inner part alone."""
    names, decoder = checkpoint.tensors.keys(), declaration.decoder
    ours = f"{decoder.embedding.partition('.')[0]}." if "." in decoder.embedding else ""
    # What every family's first block has.
    first = f"{decoder.blocks[0].attention.output.parts[0][0]}.weight".removeprefix(ours)
    body, head = _before(names, first), _before(names, _HEAD)
    prefixes = []
    if body is not None and body != ours:
        prefixes.append((ours, body))
    if head:
        prefixes.append(("lm_head.", f"{head}lm_head."))
    if not prefixes:
        return declaration
    shown = ", ".join(f"{theirs or 'nothing'} for {ours}" for ours, theirs in prefixes)
    found = _told(declaration, "tensor names", shown, "the files' names begin otherwise than the architecture's")
    return replace(declaration, tensor_prefixes=(*declaration.tensor_prefixes, *prefixes), found=found)


def _before(names: Collection[str], end: str) -> str | None:
    """What stands before `end` in the one name that ends with it; None where there is none, or another too."""
    found = [name.removesuffix(end) for name in names if name == end or name.endswith(f".{end}")]
    return found[0] if len(found) == 1 else None


def _with_experts(checkpoint: Checkpoint, declaration: ModelDeclaration) -> ModelDeclaration:
    """Gates and ups of an expert as one tensor where the files have them so."""

    def fitted(block: DecoderBlock) -> DecoderBlock:
        mlp = block.mlp
        if not isinstance(mlp, MixtureOfExperts) or mlp.names.both:
            return block
        whole = f"{mlp.names.down.rpartition('.')[0]}.gate_up_proj"
        if checkpoint.find(f"{mlp.name}.{whole.format(0)}.weight", declaration) is None:
            return block
        return replace(block, mlp=replace(mlp, names=replace(mlp.names, halves=whole)))

    blocks = tuple(map(fitted, declaration.decoder.blocks))
    return replace(declaration, decoder=replace(declaration.decoder, blocks=blocks))


def _with_head(checkpoint: Checkpoint, declaration: ModelDeclaration) -> ModelDeclaration:
    """A head of its own where the files have one that is not the embedding once more."""
    decoder = declaration.decoder
    head = checkpoint.find(_HEAD, declaration)
    if decoder.head is not None or head is None or not decoder.generates:
        return declaration
    embedding = checkpoint.find(decoder.embedding_weight.name, declaration)
    if embedding is None:
        # One name is enough for a matrix that has two.
        shared = (f"{decoder.embedding}.", head.name.removesuffix("weight"))
        found = _told(declaration, "tensor names", f"{head.name} for {decoder.embedding}.weight", "they are tied")
        return replace(declaration, tensor_prefixes=(*declaration.tensor_prefixes, shared), found=found)
    if _are_same(embedding, head):
        return declaration
    why = "the configuration ties it to the embedding (tie_word_embeddings), but the files have another matrix: used"
    found = _told(declaration, "output head", head.name, why)
    return replace(declaration, decoder=replace(decoder, head="lm_head"), found=found)


def _are_same(embedding: Entry, head: Entry) -> bool:
    try:
        return are_same(embedding, head, default_folder().parent / _COMPARED)
    except OSError as error:
        raise ModelFileError(f"{head.name} cannot be compared with {embedding.name} ({error.strerror}).") from None


def _with_biases(checkpoint: Checkpoint, declaration: ModelDeclaration) -> ModelDeclaration:
    """A bias for each projection that the files have one for, in whichever layer; then all layers must have it."""
    blocks, found = declaration.decoder.blocks, declaration.found

    def has_bias(linears: Sequence[Linear]) -> bool:
        nonlocal found
        said, parts = linears[0].bias, [part for linear in linears for part, _ in linear.parts]
        entries = (checkpoint.find(f"{part}.bias", declaration) for part in parts)
        has = any(entry is not None and (said or not checkpoint.is_zero(entry)) for entry in entries)
        if has != said:
            names = " and ".join(part.rpartition(".")[2] for part, _ in linears[0].parts)
            why = f"the configuration says {'a' if said else 'no'} bias, but the files have {'one' if has else 'none'}"
            found = (*found, Reason("biases", f"{names}: {'used' if has else 'none'}", why))
        return has

    qkv, output = (has_bias([getattr(block.attention, name) for block in blocks]) for name in ("qkv", "output"))
    if qkv != output and any(isinstance(block.attention, LatentAttention) for block in blocks):
        raise UnsupportedModel("Latent attention with biases on one side only is not implemented.")
    mlps = [block.mlp for block in blocks if isinstance(block.mlp, GatedMlp)]
    gate_up, down = (bool(mlps) and has_bias([getattr(mlp, name) for mlp in mlps]) for name in ("gate_up", "down"))

    def fitted(block: DecoderBlock) -> DecoderBlock:
        attention, mlp = block.attention, block.mlp
        if isinstance(attention, SelfAttention):
            attention = replace(attention, qkv_bias=qkv, output_bias=output)
        else:
            attention = replace(attention, bias=qkv)
        if isinstance(mlp, GatedMlp):
            mlp = replace(mlp, gate_up_bias=gate_up, down_bias=down)
        return replace(block, attention=attention, mlp=mlp)

    blocks = tuple(map(fitted, blocks))
    return replace(declaration, decoder=replace(declaration.decoder, blocks=blocks), found=found)


def _with_logit_bias(checkpoint: Checkpoint, declaration: ModelDeclaration) -> ModelDeclaration:
    """Nothing is added to logits where the files have zeros for it, as most do, or nothing."""
    decoder = declaration.decoder
    if decoder.logit_bias is None:
        return declaration
    entry = checkpoint.find(decoder.logit_bias, declaration)
    if entry is not None and not checkpoint.is_zero(entry):
        return declaration
    return replace(declaration, decoder=replace(decoder, logit_bias=None))


def _with_dtype(checkpoint: Checkpoint, declaration: ModelDeclaration) -> ModelDeclaration:
    """The type that most numbers are stored in, where the configuration does not say one."""
    if is_gguf(checkpoint.path):
        return declaration
    sizes: Counter[str] = Counter()
    for entry in checkpoint.tensors.values():
        if isinstance(entry, TensorEntry) and entry.dtype in WEIGHT_DTYPES:
            sizes[entry.dtype] += entry.nbytes
    stored = next((dtype for dtype, _ in sizes.most_common(1)), declaration.dtype)
    if stored == declaration.dtype:
        return declaration
    config = checkpoint.config
    inner = config.get("text_config")
    saying = (config, inner) if isinstance(inner, dict) else (config,)
    if not any(said.get(key) for said in saying for key in ("dtype", "torch_dtype")):
        found = _told(declaration, "stored dtype", stored, "what the files have; the configuration does not say")
        return replace(declaration, dtype=stored, found=found)
    why = f"what the files have; the configuration says {declaration.dtype}, which --dtype auto follows"
    return replace(declaration, found=_told(declaration, "stored dtype", stored, why))


def _without_scales(checkpoint: Checkpoint, declaration: ModelDeclaration) -> ModelDeclaration:
    """Of a quantized model, say what is not read."""
    if not checkpoint.quantization:
        return declaration
    unread = [name for name in checkpoint.tensors if any(fnmatchcase(name, pattern) for pattern in INERT)]
    if not unread:
        return declaration
    why = f"{len(unread)} scales of activations or of the KV cache are in the files; neither is rounded by them here"
    return replace(declaration, found=_told(declaration, "scales", "not read", why))
