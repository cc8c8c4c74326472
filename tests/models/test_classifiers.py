"""What checkpoints say of classes: labels, what makes scores of logits, and what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest

from penstock.core.errors import ModelFileError, UnsupportedModel
from penstock.core.vectors import Dense, ScoreActivation, VectorModules
from penstock.loading.checkpoint import open_checkpoint
from penstock.loading.fitting import model_of
from penstock.loading.vector_modules import modules_of
from penstock.models.classifiers import read_classes
from penstock.models.registry import declare

CONFIG = {
    "architectures": ["BertForSequenceClassification"],
    "model_type": "bert",
    "vocab_size": 40,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
}
ONE = {"id2label": {"0": "LABEL_0"}}
IDENTITY, SIGMOID = "torch.nn.modules.linear.Identity", "torch.nn.modules.activation.Sigmoid"


@pytest.mark.parametrize(
    "said, labels, activation",
    [
        ({}, ("LABEL_0", "LABEL_1"), "softmax"),
        ({"num_labels": 3}, ("LABEL_0", "LABEL_1", "LABEL_2"), "softmax"),
        (ONE, ("LABEL_0",), "sigmoid"),
        ({"id2label": {"1": "no", "0": "yes"}}, ("yes", "no"), "softmax"),
        ({**ONE, "problem_type": "regression"}, ("LABEL_0",), "identity"),
        ({"problem_type": "multi_label_classification"}, ("LABEL_0", "LABEL_1"), "sigmoid"),
        ({"problem_type": "single_label_classification"}, ("LABEL_0", "LABEL_1"), "softmax"),
        ({**ONE, "sentence_transformers": {"activation_fn": IDENTITY}}, ("LABEL_0",), "identity"),
        ({**ONE, "sbert_ce_default_activation_function": IDENTITY}, ("LABEL_0",), "identity"),
        # What sentence-transformers wrote comes first.
        (
            {**ONE, "problem_type": "regression", "sentence_transformers": {"activation_fn": SIGMOID}},
            ("LABEL_0",),
            "sigmoid",
        ),
    ],
)
def test_labels_and_activations(said: dict[str, Any], labels: tuple[str, ...], activation: ScoreActivation) -> None:
    found = read_classes(said)
    assert (found.labels, found.activation) == (labels, activation)


@pytest.mark.parametrize(
    "said, message",
    [
        ({"num_labels": 0}, "num_labels = 0"),
        ({"num_labels": True}, "num_labels = True"),
        ({"id2label": {}}, "without any class"),
        ({"id2label": {"1": "x"}}, "does not name classes from 0 on"),
        ({"id2label": ["x"]}, "does not name classes from 0 on"),
        ({"problem_type": "guess"}, "problem_type = 'guess'"),
        ({"sentence_transformers": {"activation_fn": "torch.nn.ReLU"}}, "activation_fn = 'torch.nn.ReLU'"),
        ({"sbert_ce_default_activation_function": "os.system"}, "activation_fn = 'os.system'"),
    ],
)
def test_what_cannot_be_is_refused(said: dict[str, Any], message: str) -> None:
    with pytest.raises((ModelFileError, UnsupportedModel), match=message):
        read_classes(said)


def test_a_head_follows_the_transformer() -> None:
    made = declare({**CONFIG, **ONE})
    assert made.architecture == "BertForSequenceClassification" and made.classifier is not None
    first, last = made.classifier.steps
    assert made.classifier.pooling == "cls" and made.classifier.size(16) == 1
    assert isinstance(first, Dense) and first.activation == "tanh" and first.tensor == "bert.pooler.dense"
    assert isinstance(last, Dense) and (last.inputs, last.outputs, last.tensor) == (16, 1, "classifier")
    assert made.classifier.classes is not None and made.classifier.classes.tells_apart
    assert not declare({**CONFIG, "type_vocab_size": 1}).classifier.classes.tells_apart  # type: ignore[union-attr]


def behind(folder: Path, **files: Any) -> VectorModules:
    for name, content in {"config": {**CONFIG, **ONE}, **files}.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    checkpoint = open_checkpoint(folder, weights=False)
    return modules_of(checkpoint, model_of(checkpoint))


def test_files_of_sentence_transformers(tmp_path: Path) -> None:
    found = behind(
        tmp_path,
        modules=[{"path": "", "type": "sentence_transformers.base.modules.transformer.Transformer"}],
        config_sentence_transformers={"activation_fn": IDENTITY, "prompts": {}},
        sentence_bert_config={"max_seq_length": 77},
    )
    assert found.classes is not None and found.classes.activation == "identity" and found.longest == 77


@pytest.mark.parametrize(
    "files, message",
    [
        ({"config_sentence_transformers": {"activation_fn": "torch.nn.Tanh"}}, "activation_fn = 'torch.nn.Tanh'"),
        ({"config_sentence_transformers": {"prompts": {"query": "Query: "}}}, "prompts for a model of pairs"),
        ({"modules": [{"path": "", "type": "a.Transformer"}, {"path": "1", "type": "a.Dense"}]}, "the module Dense"),
    ],
)
def test_what_is_not_implemented_is_named(tmp_path: Path, files: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedModel, match=message):
        behind(tmp_path, **files)
