"""Encoders with a head that sorts texts into classes, as transformers has it for each family: cross-encoders too."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from msgspec import structs

from penstock.core.errors import ModelFileError, UnsupportedModel
from penstock.core.vectors import (
    Centre,
    Classes,
    Dense,
    DenseActivation,
    Pooling,
    ScoreActivation,
    VectorModules,
    VectorStep,
)
from penstock.models import bert, distilbert, gemma2, llama, mistral, modernbert, mpnet, nomic_bert, qwen
from penstock.models.config import ConfigReader
from penstock.models.declaration import ModelDeclaration

Declare = Callable[[Mapping[str, Any]], ModelDeclaration]
HeadOf = Callable[[Mapping[str, Any], int], tuple[Pooling, tuple[VectorStep, ...]]]
"""(content of config.json, columns of hidden states) → which of them the head reads, and its layers but the last."""

_MOST_LABELS = 65536
# Of what sentence-transformers writes; names of torch's classes are given in full.
_SCORE_ACTIVATIONS: dict[str, ScoreActivation] = {"Identity": "identity", "Sigmoid": "sigmoid"}
_BY_PROBLEM: dict[str, ScoreActivation] = {
    "regression": "identity",
    "single_label_classification": "softmax",
    "multi_label_classification": "sigmoid",
}
_ACTIVATIONS: dict[str, DenseActivation] = {"gelu": "gelu", "relu": "relu", "silu": "silu", "tanh": "tanh"}


def _dense(tensor: str, width: int, activation: DenseActivation, *, biased: bool = True) -> Dense:
    return Dense("", width, width, activation, biased, tensor)


def _first(tensor: str, activation: DenseActivation) -> HeadOf:
    """A dense layer over the state of the first token."""
    return lambda _config, width: ("cls", (_dense(tensor, width, activation),))


def _of_modernbert(config: Mapping[str, Any], width: int) -> tuple[Pooling, tuple[VectorStep, ...]]:
    reader = ConfigReader(config, "modernbert")
    pooling: Pooling = "cls" if reader.choice("classifier_pooling", ("cls", "mean"), "cls") == "cls" else "mean"
    activation = _ACTIVATIONS[reader.choice("classifier_activation", tuple(_ACTIVATIONS), "gelu")]
    dense = _dense("head.dense", width, activation, biased=reader.flag("classifier_bias", False))
    norm = Centre("head.norm", width, reader.number("norm_eps", 1e-5), reader.flag("norm_bias", False))
    return pooling, (dense, norm)


@dataclass(frozen=True, slots=True)
class _Family:
    """A family's encoder, and its heads.

    Attributes:
        base: what its architectures' names begin with.
        of_text: the head of a text's classes, but its last layer.
        last: the names of that layer.
    """

    base: str
    declare: Declare
    of_text: HeadOf
    last: str = "classifier"


# As in the families' modules of transformers: `*ForSequenceClassification`, and of GTE its published code.
_FAMILIES = (
    _Family("Bert", bert.declare_bert, _first("bert.pooler.dense", "tanh")),
    _Family("Roberta", bert.declare_roberta, _first("classifier.dense", "tanh"), "classifier.out_proj"),
    _Family("XLMRoberta", bert.declare_xlm_roberta, _first("classifier.dense", "tanh"), "classifier.out_proj"),
    _Family("Camembert", bert.declare_camembert, _first("classifier.dense", "tanh"), "classifier.out_proj"),
    _Family("DistilBert", distilbert.declare, _first("pre_classifier", "relu")),
    _Family("MPNet", mpnet.declare, _first("classifier.dense", "tanh"), "classifier.out_proj"),
    _Family("ModernBert", modernbert.declare, _of_modernbert),
    _Family("NomicBert", nomic_bert.declare_nomic, _first("bert.pooler.dense", "tanh")),
    _Family("New", nomic_bert.declare_gte, _first("new.pooler.dense", "tanh")),
    _Family("Gte", nomic_bert.declare_gte, _first("new.pooler.dense", "tanh")),
)


def _classifying(architecture: str, family: _Family) -> Declare:
    def declare(config: Mapping[str, Any]) -> ModelDeclaration:
        # What the encoder has no use for.
        encoder = family.declare({key: value for key, value in config.items() if key not in _OWN})
        width, types = encoder.decoder.width, encoder.decoder.types
        classes = structs.replace(read_classes(config), tells_apart=types is not None and types.count > 1)
        pooling, steps = family.of_text(config, width)
        last = Dense("", width, len(classes.labels), tensor=family.last)
        modules = VectorModules(pooling, (*steps, last), classes=classes)
        return replace(encoder, architecture=architecture, classifier=modules, unused_tensors=_unused(encoder, modules))

    return declare


def _unused(encoder: ModelDeclaration, modules: VectorModules) -> tuple[str, ...]:
    """What an encoder does not need, and its head, which is read apart, by what makes scores."""
    # What encoders are called, names may begin with.
    ours = f"{encoder.decoder.embedding.partition('.')[0]}."
    tensors = [step.tensor for step in modules.steps if isinstance(step, (Dense, Centre))]
    return (*encoder.unused_tensors, *(f"*{tensor.removeprefix(ours)}.*" for tensor in tensors))


# Keys that say what the classes are.
_OWN = ("num_labels", "sentence_transformers", "sbert_ce_default_activation_function", "id2label", "label2id")

# Decoders whose last token's state the head reads.
_DECODERS: dict[str, Declare] = {
    "Llama": llama.declare,
    "Mistral": mistral.declare,
    "Qwen2": qwen.declare_qwen2,
    "Qwen3": qwen.declare_qwen3,
    "Gemma2": gemma2.declare,
}


def _judging(architecture: str, whole: Declare) -> Declare:
    def declare(config: Mapping[str, Any]) -> ModelDeclaration:
        body = whole({key: value for key, value in config.items() if key not in _OWN})
        classes, width = read_classes(config), body.decoder.width
        last = Dense("", width, len(classes.labels), biased=False, tensor="score")
        return replace(
            body,
            architecture=architecture,
            decoder=replace(body.decoder, head=None, generates=False),
            classifier=VectorModules("last", (last,), classes=classes),
            unused_tensors=(*body.unused_tensors, "score.*"),
        )

    return declare


def _labelling(architecture: str, family: _Family) -> Declare:
    """With a head that each token's state goes through: the last layer, and of ModernBERT what is before it too."""

    def declare(config: Mapping[str, Any]) -> ModelDeclaration:
        encoder = family.declare({key: value for key, value in config.items() if key not in _OWN})
        classes, width = structs.replace(read_classes(config), each_token=True), encoder.decoder.width
        before = family.of_text(config, width)[1] if family.declare is modernbert.declare else ()
        last = Dense("", width, len(classes.labels), tensor="classifier")
        modules = VectorModules("tokens", (*before, last), classes=classes)
        return replace(encoder, architecture=architecture, classifier=modules, unused_tensors=_unused(encoder, modules))

    return declare


_TEXTS, _TOKENS = "ForSequenceClassification", "ForTokenClassification"
CLASSIFIERS: dict[str, Declare] = {
    **{(name := f"{family.base}{_TEXTS}"): _classifying(name, family) for family in _FAMILIES},
    **{(name := f"{family.base}{_TOKENS}"): _labelling(name, family) for family in _FAMILIES},
    **{(name := f"{base}{_TEXTS}"): _judging(name, whole) for base, whole in _DECODERS.items()},
}


def read_classes(config: Mapping[str, Any]) -> Classes:
    """What config.json says of classes.

    As in transformers, there are two without names where it says nothing. What makes scores of logits is what
    sentence-transformers wrote down, or what the kind of the problem says; else one class has a sigmoid, and several
    have a softmax. Raises ModelFileError and UnsupportedModel.
    """
    labels = _labels(config)
    own = config.get("sentence_transformers")
    named = own.get("activation_fn") if isinstance(own, Mapping) else None
    named = config.get("sbert_ce_default_activation_function") if named is None else named
    if named is not None:
        return Classes(labels, score_activation(named, "config.json"))
    problem = config.get("problem_type")
    if problem is not None and problem not in _BY_PROBLEM:
        raise UnsupportedModel(
            f"config.json has problem_type = {str(problem)[:80]!r}; implemented: {', '.join(_BY_PROBLEM)}."
        )
    if problem is not None:
        return Classes(labels, _BY_PROBLEM[problem])
    return Classes(labels, "sigmoid" if len(labels) == 1 else "softmax")


def score_activation(named: object, file: str) -> ScoreActivation:
    """What makes scores of logits, by the name of torch's class. Raises UnsupportedModel for others."""
    last = str(named).rpartition(".")[2]
    if last not in _SCORE_ACTIVATIONS:
        raise UnsupportedModel(
            f"{file} has activation_fn = {str(named)[:80]!r}; implemented: {', '.join(_SCORE_ACTIVATIONS)}."
        )
    return _SCORE_ACTIVATIONS[last]


def _labels(config: Mapping[str, Any]) -> tuple[str, ...]:
    names = config.get("id2label")
    if names is None:
        count = config.get("num_labels", 2)
        if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= _MOST_LABELS:
            raise ModelFileError(f"config.json has num_labels = {count!r}; it must be from 1 to {_MOST_LABELS}.")
        return tuple(f"LABEL_{index}" for index in range(count))
    if not isinstance(names, Mapping) or {str(key) for key in names} != {str(index) for index in range(len(names))}:
        raise ModelFileError("config.json has an id2label that does not name classes from 0 on.")
    by_index: Sequence[object] = [{str(key): name for key, name in names.items()}[str(i)] for i in range(len(names))]
    if not by_index:
        raise ModelFileError("config.json has an id2label without any class.")
    return tuple(map(str, by_index))
