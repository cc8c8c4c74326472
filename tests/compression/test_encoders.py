"""Encoders with fewer bits: blocks run one at a time are the model, and what is written is a model like it."""

from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file

from penstock import LLM
from penstock.cli.quantize import Source, run_quantize
from penstock.compression.calibration import BlockRunner
from penstock.core.errors import ConfigurationError
from penstock.kernels.processor import this_processor
from penstock.loading.checkpoint import open_checkpoint
from penstock.loading.fitting import model_of
from penstock.loading.weights import load_weights
from penstock.quantization.recipe import Recipe
from penstock.quantization.rtn import Grid
from support.encoders_made import WORDS, make

TEXTS = [" ".join(WORDS[first : first + count]) for first, count in ((0, 1), (5, 40), (7, 2), (20, 17), (3, 9))]
ASKED = Source(None, None, None)


@pytest.mark.parametrize("family", ["bert", "modernbert", "nomic", "embeddinggemma"])
def test_states_are_those_of_the_whole_model(tmp_path: Path, family: str) -> None:
    checkpoint = open_checkpoint(make(family, tmp_path))
    declaration = model_of(checkpoint)
    weights = load_weights(checkpoint, declaration, torch.float32)
    texts = [[2, *range(5, 5 + count), 3] for count in (1, 30, 58)]
    runner = BlockRunner.for_texts(declaration, this_processor(), 60, torch.float32)
    states = runner.embed(weights, texts)
    for block in declaration.decoder.blocks:
        states = list(runner.run(block, weights, texts, states))
    model = transformers.AutoModel.from_pretrained(tmp_path).eval()
    # What is behind the last block is normed in some.
    norm = getattr(model, "final_norm", getattr(model, "norm", torch.nn.Identity()))
    with torch.inference_mode():
        for ids, state in zip(texts, states, strict=True):
            expected = model(torch.tensor([ids])).last_hidden_state[0]
            torch.testing.assert_close(norm(state.stream), expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(("method", "bits", "least"), [("rtn", 8, 0.99), ("gptq", 4, 0.7)])
@pytest.mark.parametrize("family", ["bert", "modernbert"])
def test_what_is_written_is_a_model_like_it(tmp_path: Path, family: str, method: str, bits: int, least: float) -> None:
    model, out, text = make(family, tmp_path / "model"), tmp_path / "out", tmp_path / "texts.txt"
    text.write_text("\n".join(TEXTS))
    source = Source(str(text), None, None) if method == "gptq" else ASKED
    run_quantize(str(model), Recipe(method, Grid(bits, 32), "compressed-tensors"), source, out, 1)
    stored = [name for file in out.glob("*.safetensors") for name in load_file(file)]
    assert any("packed" in name for name in stored) and (out / "modules.json").exists()
    exact, found = np.array(LLM(str(model)).embed(TEXTS)), np.array(LLM(str(out)).embed(TEXTS))
    assert least < (exact * found).sum(1).min() < 1 - 1e-7


def test_heads_are_written_too(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, out = make("bert", tmp_path / "model"), tmp_path / "out"
    (model / "modules.json").unlink()
    config = transformers.BertConfig.from_pretrained(model, num_labels=3)
    transformers.BertForSequenceClassification(config).save_pretrained(model)
    run_quantize(str(model), Recipe("rtn", Grid(8, 32), "compressed-tensors"), ASKED, out, 1)
    exact, found = (LLM(str(folder)).classify(TEXTS) for folder in (model, out))
    for one, other in zip(exact, found, strict=True):
        np.testing.assert_allclose(list(one.scores.values()), list(other.scores.values()), atol=0.15)


def test_what_cannot_be_written_is_refused(tmp_path: Path) -> None:
    model = make("bert", tmp_path / "model")
    for method, layout in (("awq", "awq"), ("mixed", "compressed-tensors"), ("rtn", "Q8_0")):
        with pytest.raises(ConfigurationError, match="writes encoders with --method gptq or rtn"):
            run_quantize(str(model), Recipe(method, Grid(4, 32), layout), ASKED, tmp_path / "out", 1)
