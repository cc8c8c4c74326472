"""Logits of classifiers equal transformers', whatever is in the batch; every part of a head matters."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file

from penstock import LLM
from penstock.core.errors import InvalidParameter
from support.tokenizers_made import write_words

WORDS = [f"word{number}" for number in range(100)]
TOLERANCE = 2e-5
SMALL = {
    "vocab_size": 110,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 80,
    # So large that attention is peaked, and nothing hides.
    "initializer_range": 0.3,
}
OF_ONE_TYPE = {**SMALL, "type_vocab_size": 1, "pad_token_id": 1}
MODERN = {**SMALL, "local_attention": 16, "bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1, "pad_token_id": 3}
FAMILIES: Mapping[str, tuple[str, Callable[..., Any]]] = {
    "bert": ("Bert", lambda **labels: transformers.BertConfig(**SMALL, **labels)),
    "roberta": ("Roberta", lambda **labels: transformers.RobertaConfig(**OF_ONE_TYPE, **labels)),
    "xlm-roberta": ("XLMRoberta", lambda **labels: transformers.XLMRobertaConfig(**OF_ONE_TYPE, **labels)),
    "camembert": ("Camembert", lambda **labels: transformers.CamembertConfig(**OF_ONE_TYPE, **labels)),
    "distilbert": (
        "DistilBert",
        lambda **labels: transformers.DistilBertConfig(
            vocab_size=110, dim=32, hidden_dim=48, n_layers=2, n_heads=2, max_position_embeddings=80, **labels
        ),
    ),
    "mpnet": ("MPNet", lambda **labels: transformers.MPNetConfig(**SMALL, **labels)),
    "modernbert": ("ModernBert", lambda **labels: transformers.ModernBertConfig(**MODERN, sep_token_id=2, **labels)),
    "modernbert, mean": (
        "ModernBert",
        lambda **labels: transformers.ModernBertConfig(
            **MODERN, sep_token_id=2, classifier_pooling="mean", classifier_bias=True, norm_bias=True, **labels
        ),
    ),
    "nomic": ("NomicBert", lambda **labels: transformers.NomicBertConfig(**SMALL, head_dim=16, **labels)),
    "gte": ("Gte", lambda **labels: transformers.GteConfig(**SMALL, type_vocab_size=2, **labels)),
}
PAIRS = [
    (" ".join(WORDS[first : first + one]), " ".join(WORDS[begin : begin + other]))
    for first, one, begin, other in ((0, 5, 50, 20), (3, 1, 7, 1), (60, 30, 9, 2), (20, 3, 30, 40), (8, 17, 1, 30))
]
TEXTS = [first for first, _ in PAIRS]


def write(folder: Path, family: str, *, seed: int = 0, **labels: Any) -> Any:
    """Transformers' model of a family with random weights, which is written with a tokenizer."""
    name, config = FAMILIES[family]
    torch.manual_seed(seed)
    model = getattr(transformers, f"{name}ForSequenceClassification")(config(**labels)).eval()
    for parameter_name, parameter in model.named_parameters():
        # Biases begin at 0 and norms at 1, where they would not be seen.
        if parameter.ndim == 1:
            torch.nn.init.normal_(parameter, 1.0 if parameter_name.endswith("weight") else 0.0, 0.3)
    model.save_pretrained(folder)
    write_words(folder, WORDS)
    return model


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Any]]:
    found = {}
    for seed, family in enumerate(FAMILIES):
        folder = tmp_path_factory.mktemp("classifiers") / family.replace(", ", "-")
        found[family] = folder, write(folder, family, seed=seed, num_labels=3)
    return found


@torch.inference_mode()
def expected(model: Any, llm: LLM, given: str | tuple[str, str]) -> NDArray[np.float32]:
    assert llm.tokenizer is not None
    if isinstance(given, str):
        ids, second = llm.tokenizer.encode(given), 0
    else:
        ids, second, _ = llm.tokenizer.encode_pairs(given[0], [given[1]])[0]
    types = {}
    if getattr(model.config, "type_vocab_size", 0) == 2:
        types["token_type_ids"] = torch.tensor([[int(0 < second <= place) for place in range(len(ids))]])
    return model(torch.tensor([ids]), **types).logits[0].numpy()  # type: ignore[no-any-return]


def logits(llm: LLM, inputs: Any) -> NDArray[np.float64]:
    return np.array([list(each.scores.values()) for each in llm.classify(inputs, use_activation=False)])


def difference(llm: LLM, model: Any) -> float:
    """The largest, as a part of the largest logit."""
    given = [*PAIRS, *TEXTS]
    right = np.array([expected(model, llm, each) for each in given])
    return float(np.abs(logits(llm, given) - right).max() / np.abs(right).max())


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_equal_transformers(models: dict[str, tuple[Path, Any]], family: str) -> None:
    folder, model = models[family]
    llm = LLM(str(folder))
    assert difference(llm, model) <= TOLERANCE
    given = [*PAIRS, *TEXTS]
    alone = [logits(llm, [each])[0].tolist() for each in given]
    assert alone == logits(llm, given).tolist(), "a text alone has the same bits"


# What a family's head is made of, by the tensors' names.
PARTS = [
    *(("bert", name) for name in ("bert.pooler.dense.weight", "bert.pooler.dense.bias", "classifier.bias")),
    ("bert", "bert.embeddings.token_type_embeddings.weight"),
    *(("roberta", f"classifier.{name}") for name in ("dense.weight", "dense.bias", "out_proj.weight", "out_proj.bias")),
    *(("distilbert", name) for name in ("pre_classifier.weight", "pre_classifier.bias", "classifier.weight")),
    *(("mpnet", name) for name in ("classifier.dense.bias", "classifier.out_proj.bias")),
    *(("modernbert, mean", name) for name in ("head.dense.weight", "head.dense.bias", "head.norm.weight")),
    *(("modernbert, mean", name) for name in ("head.norm.bias", "classifier.bias")),
    *(("nomic", name) for name in ("classifier.bias",)),
    *(("gte", name) for name in ("classifier.weight", "classifier.bias")),
]


@pytest.mark.parametrize("family, tensor", PARTS)
def test_every_part_of_a_head_matters(
    models: dict[str, tuple[Path, Any]], tmp_path: Path, family: str, tensor: str
) -> None:
    """A part that is read wrong must show in the logits: else the parity tests would not see it break."""
    folder, model = models[family]
    tensors = load_file(folder / "model.safetensors")
    tensors[tensor] = tensors[tensor].flip(0) + 0.1
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    assert difference(LLM(str(tmp_path)), model) > 100 * TOLERANCE


@pytest.mark.parametrize(
    "change",
    [
        {"classifier_pooling": "cls"},
        {"classifier_activation": "relu"},
        {"norm_eps": 0.5},
    ],
)
def test_what_a_configuration_says_of_a_head_matters(
    models: dict[str, tuple[Path, Any]], tmp_path: Path, change: dict[str, Any]
) -> None:
    folder, model = models["modernbert, mean"]
    for name in ("model.safetensors", "tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).symlink_to(folder / name)
    config = json.loads((folder / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, **change}))
    assert difference(LLM(str(tmp_path)), model) > 100 * TOLERANCE


@pytest.mark.parametrize("family", FAMILIES)
@torch.inference_mode()
def test_classes_of_tokens_equal_transformers(tmp_path: Path, family: str) -> None:
    name, config = FAMILIES[family]
    torch.manual_seed(5)
    labels = {0: "O", 1: "B-PER", 2: "I-PER"}
    kind = getattr(transformers, f"{name}ForTokenClassification")
    model = kind(config(id2label=labels, label2id={label: index for index, label in labels.items()})).eval()
    for parameter_name, parameter in model.named_parameters():
        if parameter.ndim == 1:
            torch.nn.init.normal_(parameter, 1.0 if parameter_name.endswith("weight") else 0.0, 0.3)
    # No class is that of all tokens.
    model.classifier.bias -= model(torch.arange(5, 60)[None]).logits[0].mean(0)
    model.save_pretrained(tmp_path)
    write_words(tmp_path, WORDS)
    llm = LLM(str(tmp_path))
    assert llm.tokenizer is not None
    found = llm.label_tokens(TEXTS)
    for text, tokens in zip(TEXTS, found, strict=True):
        probabilities = model(torch.tensor([llm.tokenizer.encode(text)])).logits[0, 1:-1].softmax(-1)
        assert [each.label for each in tokens] == [labels[int(index)] for index in probabilities.argmax(-1)]
        right = probabilities.max(-1).values.numpy()
        np.testing.assert_allclose([each.score for each in tokens], right, atol=5e-5)
        assert [text[each.start : each.end] for each in tokens] == text.split()
    assert [llm.label_tokens(text)[0] for text in TEXTS] == found, "a text alone has the same bits"
    assert len({each.label for tokens in found for each in tokens}) > 1
    with pytest.raises(InvalidParameter, match="use LLM.label_tokens"):
        llm.classify("word1")
    with pytest.raises(InvalidParameter, match="it sorts tokens of texts into 3 classes; ask /v1/classify"):
        llm.score("word1", "word2")
