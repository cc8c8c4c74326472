"""Checkpoints of sentence-transformers: what `modules.json` puts behind the transformer, read or refused by name."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from penstock.core.config import RerankerName
from penstock.core.errors import ModelFileError, UnsupportedModel
from penstock.core.late_interaction import LateInteraction
from penstock.core.vectors import (
    Classes,
    Contrast,
    Dense,
    DenseActivation,
    Normalize,
    Pooling,
    VectorModules,
    VectorStep,
)
from penstock.loading.checkpoint import Checkpoint
from penstock.loading.json_file import read_json, read_json_list
from penstock.loading.late_modules import METADATA, SETTINGS, colbert_modules, is_pylate, pylate_modules, whole_number
from penstock.models.classifiers import score_activation
from penstock.models.declaration import ModelDeclaration

MODULES = "modules.json"
# Of ColBERT's own checkpoints, among the transformer's tensors.
_PROJECTION = "linear.weight"
_TRANSFORMER_SETTINGS = "sentence_bert_config.json"

_POOLINGS: dict[str, Pooling] = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "last",
}
_BY_NAME: dict[str, Pooling] = {
    "cls": "cls",
    "mean": "mean",
    "max": "max",
    "mean_sqrt_len_tokens": "mean_sqrt_len",
    "weightedmean": "weightedmean",
    "lasttoken": "last",
}
_ACTIVATIONS: dict[str, DenseActivation] = {
    "Identity": "identity",
    "Tanh": "tanh",
    "ReLU": "relu",
    "GELU": "gelu",
    "Sigmoid": "sigmoid",
    "SiLU": "silu",
}
_SIMILARITIES = ("cosine", "dot", "euclidean", "manhattan")


def read_modules(folder: Path, *, causal: bool) -> VectorModules:
    """What a model's folder says of its vectors.

    Where it says nothing, the vector is the last token's, if that alone has seen all (`causal`), or else the mean, and
    of length 1. Raises ModelFileError, and UnsupportedModel where there is what is not implemented, which it names.
    """
    if (late := colbert_modules(folder)) is not None:
        return late
    if not (folder / MODULES).is_file():
        return VectorModules("last" if causal else "mean")
    settings = _read(folder / SETTINGS)
    if is_pylate(settings):
        return pylate_modules(settings, _dense_only(folder))
    pooling, includes, steps = None, True, list[VectorStep]()
    for kind, path in _modules(folder):
        match kind:
            case "Transformer" if pooling is None:
                if path not in ("", "."):
                    raise UnsupportedModel(f"{MODULES} has the transformer in {path}, which is not implemented.")
            case "Pooling" if pooling is None:
                pooling, includes = _pooling(folder / path)
            case "Dense" if pooling is not None:
                steps.append(_dense(folder, path))
            case "Normalize" if pooling is not None:
                steps.append(Normalize())
            case "Dropout":
                pass
            case "LogitScore":
                raise UnsupportedModel(
                    f"{MODULES} has the module LogitScore, of rerankers that generate; those that are trained like "
                    "Qwen3-Reranker are served with --reranker qwen3."
                )
            case _:
                raise UnsupportedModel(
                    f"{MODULES} has the module {kind} in this place, which is not implemented; implemented are "
                    "Transformer, Pooling, then Dense and Normalize."
                )
    if pooling is None:
        raise UnsupportedModel(f"{MODULES} has no Pooling, without which there is no one vector of a text.")
    return _with_settings(folder, settings, VectorModules(pooling, tuple(steps), includes))


def _dense_only(folder: Path) -> tuple[Dense, ...]:
    """The dense layers behind the transformer, where nothing else is there."""
    (first, place), *others = list(_modules(folder)) or [("nothing", "")]
    if first != "Transformer" or place not in ("", ".") or any(kind != "Dense" for kind, _ in others):
        kinds = ", ".join([first, *(kind for kind, _ in others)])
        raise UnsupportedModel(f"{MODULES} has {kinds}; of PyLate's models Transformer and then Dense are implemented.")
    return tuple(_dense(folder, path) for _, path in others)


def modules_of(
    checkpoint: Checkpoint, declaration: ModelDeclaration, reranker: RerankerName | None = None
) -> VectorModules:
    """What is behind a model's transformer: the head of its architecture, or what its checkpoint says of vectors.

    `reranker` is what users say that it is, since its files do not. Raises as `read_modules` does.
    """
    found = None if declaration.classifier is None else _of_classifier(checkpoint.path, declaration.classifier)
    if reranker is not None:
        return _of_reranker(declaration, found)
    if found is not None:
        return found
    causal = declaration.causal
    made = read_modules(checkpoint.path, causal=causal) if checkpoint.vectors is None else checkpoint.vectors
    if made.late is None and _PROJECTION in checkpoint.tensors:
        raise ModelFileError(
            f"{checkpoint.path} has a tensor {_PROJECTION}, as ColBERT's models do, but no {METADATA}."
        )
    if made.late is not None:
        _check_late(made.late, declaration)
    return made


def _check_late(late: LateInteraction, declaration: ModelDeclaration) -> None:
    if declaration.causal:
        raise UnsupportedModel("Late interaction is implemented for encoders whose tokens see all others.")
    windows = (block.attention.window for block in declaration.decoder.blocks)
    nearest = min((window for window in windows if window is not None), default=late.query_length)
    if late.expands and not late.seen and nearest < late.query_length:
        raise UnsupportedModel(
            f"Queries are filled up to {late.query_length} tokens, some of which would see nothing: layers have "
            f"windows of {nearest} tokens on each side, and no token sees what was filled up."
        )


def _of_reranker(declaration: ModelDeclaration, head: VectorModules | None) -> VectorModules:
    """Qwen3-Reranker (Zhang et al., Qwen3 Embedding, 2025): the logits of "yes" and "no" at the end of its template.

    Its weights are published with a head made of these, too.
    """
    if head is not None and head.classes is not None and len(head.classes.labels) == 1 and head.pooling == "last":
        return msgspec.structs.replace(head, classes=msgspec.structs.replace(head.classes, template="qwen3"))
    if head is not None or not declaration.decoder.generates:
        raise UnsupportedModel(
            f"--reranker qwen3 is for decoders that generate, or that have a head for one class, and not for "
            f"{declaration.architecture}."
        )
    classes = Classes(("yes",), "sigmoid", template="qwen3")
    return VectorModules("last", (Contrast("yes", "no"),), classes=classes)


def _of_classifier(folder: Path, modules: VectorModules) -> VectorModules:
    """A head with what sentence-transformers wrote down beside it, of a cross-encoder."""
    if (folder / MODULES).is_file():
        others = [kind for kind, _ in _modules(folder) if kind != "Transformer"]
        if others:
            raise UnsupportedModel(
                f"{MODULES} has the module {others[0]} behind a transformer with a head, which is not implemented."
            )
    settings, own = _read(folder / SETTINGS), _own(folder)
    if settings.get("prompts") and any(settings["prompts"].values()):
        raise UnsupportedModel(f"{SETTINGS} has prompts for a model of pairs, which are not implemented.")
    classes = modules.classes
    if classes is not None and (named := settings.get("activation_fn")) is not None:
        classes = msgspec.structs.replace(classes, activation=score_activation(named, SETTINGS))
    longest = _count(own, _TRANSFORMER_SETTINGS, "max_seq_length")
    return msgspec.structs.replace(modules, classes=classes, longest=longest)


def module_folders(folder: Path) -> list[str]:
    """Folders of the modules behind the transformer, which are in the model's. Raises ModelFileError."""
    if not (folder / MODULES).is_file():
        return []
    return [path for _, path in _modules(folder) if path not in ("", ".") and (folder / path).is_dir()]


def _modules(folder: Path) -> Iterator[tuple[str, str]]:
    """The kind of each module, and its folder, in order."""
    for module in read_json_list(folder / MODULES):
        if not isinstance(module, Mapping) or not all(isinstance(module.get(key), str) for key in ("type", "path")):
            raise ModelFileError(f"{MODULES} must list objects with a type and a path.")
        path = module["path"]
        if Path(path).is_absolute() or ".." in Path(path).parts:
            raise ModelFileError(f"{MODULES} has the path {path!r}, which is outside of the model's folder.")
        yield module["type"].rpartition(".")[2], path


def _pooling(folder: Path) -> tuple[Pooling, bool]:
    config = read_json(folder / "config.json")
    chosen = [kind for key, kind in _POOLINGS.items() if config.get(key) is True]
    if "pooling_mode" in config:
        named = config["pooling_mode"]
        names = [named] if isinstance(named, str) else named
        if not isinstance(names, list) or any(name not in _BY_NAME for name in names):
            raise UnsupportedModel(f"{folder.name}/config.json has pooling_mode = {names!r}; implemented: {_listed()}.")
        chosen = [_BY_NAME[name] for name in names]
    if len(chosen) != 1:
        raise UnsupportedModel(
            f"{folder.name}/config.json has {len(chosen)} poolings ({', '.join(chosen) or 'none'}), and one is "
            f"implemented: {_listed()}."
        )
    includes = config.get("include_prompt", True)
    if not isinstance(includes, bool):
        raise ModelFileError(f"{folder.name}/config.json has include_prompt = {includes!r}; it must be true or false.")
    return chosen[0], includes


def _listed() -> str:
    return ", ".join(_BY_NAME)


def _dense(folder: Path, path: str) -> Dense:
    config = read_json(folder / path / "config.json")
    inputs, outputs = config.get("in_features"), config.get("out_features")
    if not all(isinstance(size, int) and not isinstance(size, bool) and size > 0 for size in (inputs, outputs)):
        raise ModelFileError(f"{path}/config.json must say in_features and out_features.")
    if config.get("use_residual"):
        raise UnsupportedModel(f"{path}/config.json has use_residual = true, which is not implemented.")
    name = str(config.get("activation_function", "torch.nn.modules.activation.Tanh")).rpartition(".")[2]
    if name not in _ACTIVATIONS:
        raise UnsupportedModel(
            f"{path}/config.json has the activation {name}, which is not implemented; implemented: "
            f"{', '.join(_ACTIVATIONS)}."
        )
    assert isinstance(inputs, int) and isinstance(outputs, int)
    return Dense(path, inputs, outputs, _ACTIVATIONS[name], config.get("bias", True) is not False)


def _with_settings(folder: Path, settings: Mapping[str, Any], modules: VectorModules) -> VectorModules:
    """Prompts, lengths and sizes, which are in files of their own."""
    own = _own(folder)
    prompts, default = settings.get("prompts") or {}, settings.get("default_prompt_name")
    if not isinstance(prompts, dict) or not all(isinstance(text, str) for text in prompts.values()):
        raise ModelFileError(f"{SETTINGS} has prompts that are no texts.")
    if default is not None and default not in prompts:
        raise ModelFileError(f"{SETTINGS} has default_prompt_name = {default!r}, and no such prompt.")
    similarity = settings.get("similarity_fn_name") or "cosine"
    if similarity not in _SIMILARITIES:
        raise UnsupportedModel(
            f"{SETTINGS} has similarity_fn_name = {similarity!r}; implemented: {', '.join(_SIMILARITIES)}."
        )
    return VectorModules(
        modules.pooling,
        modules.steps,
        modules.includes_prompt,
        prompts,
        default,
        _count(own, _TRANSFORMER_SETTINGS, "max_seq_length"),
        similarity,
        _count(settings, SETTINGS, "truncate_dim"),
    )


def _read(file: Path) -> dict[str, Any]:
    """The object in a file, empty where there is none."""
    return read_json(file) if file.is_file() else {}


def _own(folder: Path) -> dict[str, Any]:
    """What the files of sentence-transformers say of the transformer."""
    own = _read(folder / _TRANSFORMER_SETTINGS)
    if own.get("do_lower_case"):
        raise UnsupportedModel(f"{_TRANSFORMER_SETTINGS} has do_lower_case = true, which the tokenizer has to do.")
    return own


def _count(settings: Mapping[str, Any], file: str, key: str) -> int | None:
    value = settings.get(key)
    return None if value is None else whole_number(value, file, key)
