"""What `modules.json` says is carried out, and what is not implemented is refused by name."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from penstock.core.errors import ModelFileError, UnsupportedModel
from penstock.core.vectors import Dense, Normalize, Pooling, VectorModules
from penstock.loading.vector_modules import read_modules
from penstock.loading.vector_weights import dense_weights

TRANSFORMER = ("", "sentence_transformers.models.Transformer")
POOLING = ("1_Pooling", "sentence_transformers.models.Pooling")
DENSE = ("2_Dense", "sentence_transformers.models.Dense")
NORMALIZE = ("3_Normalize", "sentence_transformers.models.Normalize")


def write(folder: Path, *modules: tuple[str, str], pooling: Any = None, dense: Any = None, **files: Any) -> Path:
    listed = [{"idx": place, "path": path, "type": kind} for place, (path, kind) in enumerate(modules)]
    (folder / "modules.json").write_text(json.dumps(listed))
    for name, content in (("1_Pooling", pooling or {"pooling_mode_mean_tokens": True}), ("2_Dense", dense)):
        if content is not None:
            (folder / name).mkdir(exist_ok=True)
            (folder / name / "config.json").write_text(json.dumps(content))
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


def test_without_modules_what_generates_gives_its_last_token(tmp_path: Path) -> None:
    assert read_modules(tmp_path, causal=True) == VectorModules("last", (Normalize(),))
    assert read_modules(tmp_path, causal=False) == VectorModules("mean", (Normalize(),))


@pytest.mark.parametrize(
    "said, pooling",
    [
        ({"pooling_mode_cls_token": True}, "cls"),
        ({"pooling_mode_mean_tokens": True, "pooling_mode_max_tokens": False}, "mean"),
        ({"pooling_mode_max_tokens": True}, "max"),
        ({"pooling_mode_mean_sqrt_len_tokens": True}, "mean_sqrt_len"),
        ({"pooling_mode_weightedmean_tokens": True}, "weightedmean"),
        ({"pooling_mode_lasttoken": True}, "last"),
        ({"pooling_mode": "lasttoken"}, "last"),
    ],
)
def test_poolings(tmp_path: Path, said: dict[str, Any], pooling: Pooling) -> None:
    found = read_modules(write(tmp_path, TRANSFORMER, POOLING, pooling=said), causal=False)
    assert found == VectorModules(pooling, ())


def test_dense_layers_prompts_and_lengths(tmp_path: Path) -> None:
    tanh = {"in_features": 4, "out_features": 3, "activation_function": "torch.nn.modules.activation.Tanh"}
    settings = {
        "prompts": {"query": "query: ", "document": ""},
        "default_prompt_name": "query",
        "similarity_fn_name": "dot",
        "truncate_dim": 2,
    }
    write(
        tmp_path,
        TRANSFORMER,
        POOLING,
        DENSE,
        NORMALIZE,
        pooling={"pooling_mode_mean_tokens": True, "include_prompt": False},
        dense=tanh,
        config_sentence_transformers=settings,
        sentence_bert_config={"max_seq_length": 256, "do_lower_case": False},
    )
    dense = Dense("2_Dense", 4, 3, "tanh")
    found = read_modules(tmp_path, causal=False)
    assert found == VectorModules(
        "mean",
        (dense, Normalize()),
        includes_prompt=False,
        prompts={"query": "query: ", "document": ""},
        default_prompt="query",
        longest=256,
        similarity="dot",
        dimensions=2,
    )
    assert found.size(4) == 3
    weight, bias = torch.randn(3, 4), torch.randn(3)
    save_file({"linear.weight": weight, "linear.bias": bias}, tmp_path / "2_Dense" / "model.safetensors")
    loaded = dense_weights(tmp_path, dense)
    np.testing.assert_array_equal(loaded[0], weight.numpy())
    assert loaded[1] is not None
    np.testing.assert_array_equal(loaded[1], bias.numpy())
    with pytest.raises(ModelFileError, match=r"linear.weight of the shape \[5, 4\], not one of the shape \[3, 4\]"):
        dense_weights(tmp_path, Dense("2_Dense", 4, 5))


def test_what_does_not_fit_together_is_told() -> None:
    first, second = Dense("2_Dense", 4, 3), Dense("3_Dense", 3, 5)
    assert VectorModules(steps=(first, second)).obstacle(4) is None
    assert "2_Dense/config.json has in_features = 4, but is given 6" in str(VectorModules(steps=(first,)).obstacle(6))
    assert "3_Dense/config.json has in_features = 3" in str(VectorModules(steps=(second,)).obstacle(4))
    assert "truncate_dim = 6, but a vector has 5" in str(VectorModules(steps=(second,), dimensions=6).obstacle(3))


@pytest.mark.parametrize(
    "modules, message",
    [
        ([TRANSFORMER, POOLING, ("2", "sentence_transformers.models.CNN")], "module CNN in this place"),
        ([TRANSFORMER, DENSE, POOLING], "module Dense in this place"),
        ([TRANSFORMER], "no Pooling"),
        (
            [TRANSFORMER, ("1", "sentence_transformers.cross_encoder.modules.LogitScore")],
            "served with --reranker qwen3",
        ),
        ([("0_Transformer", TRANSFORMER[1]), POOLING], "the transformer in 0_Transformer"),
        ([TRANSFORMER, ("../outside", POOLING[1])], "outside of the model's folder"),
    ],
)
def test_other_modules_are_refused_by_name(tmp_path: Path, modules: list[tuple[str, str]], message: str) -> None:
    with pytest.raises((UnsupportedModel, ModelFileError), match=message):
        read_modules(write(tmp_path, *modules), causal=False)


@pytest.mark.parametrize(
    "files, message",
    [
        ({"pooling": {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": True}}, "2 poolings"),
        ({"pooling": {"pooling_mode": "median"}}, "pooling_mode = .'median'"),
        ({"pooling": {"pooling_mode_mean_tokens": True, "include_prompt": 1}}, "include_prompt = 1"),
        ({"config_sentence_transformers": {"prompts": {"a": "b"}, "default_prompt_name": "c"}}, "no such prompt"),
        ({"config_sentence_transformers": {"similarity_fn_name": "hamming"}}, "hamming"),
        ({"config_sentence_transformers": {"truncate_dim": 0}}, "truncate_dim = 0"),
        ({"sentence_bert_config": {"do_lower_case": True}}, "do_lower_case"),
        ({"sentence_bert_config": {"max_seq_length": "long"}}, "max_seq_length = 'long'"),
    ],
)
def test_other_settings_are_refused(tmp_path: Path, files: dict[str, Any], message: str) -> None:
    with pytest.raises((UnsupportedModel, ModelFileError), match=message):
        read_modules(write(tmp_path, TRANSFORMER, POOLING, **files), causal=False)


@pytest.mark.parametrize(
    "dense, message",
    [
        ({"in_features": 4}, "out_features"),
        ({"in_features": 4, "out_features": 3, "activation_function": "a.B"}, " B,"),
    ],
)
def test_other_dense_layers_are_refused(tmp_path: Path, dense: dict[str, Any], message: str) -> None:
    with pytest.raises((UnsupportedModel, ModelFileError), match=message):
        read_modules(write(tmp_path, TRANSFORMER, POOLING, DENSE, dense=dense), causal=False)
