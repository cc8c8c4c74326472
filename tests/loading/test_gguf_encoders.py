"""Encoders in GGUF files are those of the checkpoints they were made from: hidden states, vectors, tokens."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType as Kind

from penstock import LLM
from penstock.core.errors import UnsupportedModel
from penstock.loading.checkpoint import open_checkpoint
from support.encoders_made import ENCODERS, WORDS, make, write_gguf

TEXTS = [" ".join(WORDS[first : first + count]) for first, count in ((0, 1), (5, 40), (7, 2), (20, 17), (3, 9))]


@pytest.mark.parametrize("family", ENCODERS)
def test_vectors_are_those_of_the_checkpoint(tmp_path: Path, family: str) -> None:
    model = make(family, tmp_path / "model")
    file = write_gguf(family, model, tmp_path / "model.gguf")
    first, second = LLM(str(model)), LLM(str(file))
    assert first.tokenizer is not None and second.tokenizer is not None
    for text in (*TEXTS, "Word3, wörd4! word5word6 foo"):
        assert second.tokenizer.encode(text) == first.tokenizer.encode(text)
    assert second.embed(TEXTS) == first.embed(TEXTS)


def test_blocks_are_kept(tmp_path: Path) -> None:
    model = make("bert", tmp_path / "model")
    exact = np.array(LLM(str(model)).embed(TEXTS))
    rounded = np.array(LLM(str(write_gguf("bert", model, tmp_path / "model.gguf", Kind.Q8_0))).embed(TEXTS))
    assert 1e-6 < np.abs(rounded - exact).max() < 0.1 and (rounded * exact).sum(1).min() > 0.99


@pytest.mark.parametrize(("number", "pooling"), [(1, "mean"), (2, "cls"), (3, "last")])
def test_pooling_is_what_the_file_says(tmp_path: Path, number: int, pooling: Any) -> None:
    model = make("bert", tmp_path / "model")
    file = write_gguf("bert", model, tmp_path / "model.gguf", **{"bert.pooling_type": number})
    llm = LLM(str(file))
    assert llm.embed(TEXTS) == llm.embed(TEXTS, pooling)


def test_what_is_not_there_is_told_and_what_is_no_embedder_refused(tmp_path: Path) -> None:
    model = make("embeddinggemma", tmp_path / "model")
    for number in (2, 3):
        (model / f"{number}_Dense" / "model.safetensors").unlink()
    file = write_gguf("embeddinggemma", model, tmp_path / "model.gguf")
    (reason,) = open_checkpoint(file).found
    assert reason.setting == "vectors" and "without the dense layers" in reason.why
    ranking = write_gguf("bert", make("bert", tmp_path / "bert"), tmp_path / "b.gguf", **{"bert.pooling_type": 4})
    with pytest.raises(UnsupportedModel, match="this file is of a reranker"):
        open_checkpoint(ranking)
