"""Vectors of a step's texts: what is wrong with one is no other's."""

from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from penstock import LLM
from support.encoders_made import make

BROKEN = 7
TEXTS = [[5, 6, 9, 10], [5, BROKEN, 9], [11]]


def poisoned(folder: Path) -> Path:
    """A checkpoint in which one token's embedding is no number."""
    checkpoint = make("bert", folder)
    file = checkpoint / "model.safetensors"
    weights = load_file(file)
    [name] = [each for each in weights if each.endswith("word_embeddings.weight")]
    weights[name][BROKEN] = torch.nan
    save_file(weights, file, {"format": "pt"})
    return checkpoint


def test_a_vector_that_breaks_fails_its_own_request_only(tmp_path: Path) -> None:
    llm = LLM(str(poisoned(tmp_path / "bert")), threads=1, max_model_len=64)
    requests = [llm._intake.embedding(text, "mean") for text in TEXTS]
    for request in requests:
        llm._core.add(request)
    gained = {event.request_id: event.gained for event in llm._core.step()}
    assert not llm._core.has_work, "all were in one step"
    first, broken, last = (gained[request.request_id] for request in requests)
    assert broken.embedding is None and broken.ending is not None and broken.ending.reason == "error"
    assert "no vector of finite length" in (broken.ending.error or "")
    for text, each in ((TEXTS[0], first), (TEXTS[2], last)):
        assert each.embedding is not None and each.ending is not None and each.ending.reason != "error"
        alone = llm.embed([text], "mean")
        assert memoryview(each.embedding).cast("f").tolist() == alone[0]
