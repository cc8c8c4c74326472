"""An encoder from a checkpoint to vectors, in Python and over HTTP."""

import json
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
import torch
import transformers
from numpy.typing import NDArray

from penstock import LLM
from penstock.core.errors import ConfigurationError, ContextLengthExceeded, InvalidParameter
from support.live_server import RunningServer, serving
from support.tokenizers_made import write_words

WORDS = [f"word{number}" for number in range(60)]


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small BERT with random weights, as sentence-transformers would have it."""
    folder = tmp_path_factory.mktemp("models") / "tiny-bert"
    torch.manual_seed(0)
    size = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = transformers.BertConfig(vocab_size=80, max_position_embeddings=64, initializer_range=0.3, **size)
    transformers.BertModel(config).save_pretrained(folder)
    write_words(folder, WORDS)
    modules = [("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize")]
    listed = [{"path": path, "type": f"sentence_transformers.models.{kind}"} for path, kind in modules]
    (folder / "modules.json").write_text(json.dumps(listed))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_mean_tokens": True}))
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 48}))
    settings = {"prompts": {"query": "word1 word2 "}}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(settings))
    return folder


@pytest.fixture(scope="module")
def llm(encoder: Path) -> LLM:
    return LLM(str(encoder), max_num_seqs=8)


def texts() -> list[str]:
    return [" ".join(WORDS[first : first + count]) for first, count in ((0, 1), (5, 40), (7, 2), (20, 17), (3, 9))]


@torch.inference_mode()
def expected(encoder: Path, ids: list[int]) -> NDArray[np.float32]:
    states = transformers.BertModel.from_pretrained(encoder).eval()(torch.tensor([ids])).last_hidden_state[0]
    mean = states.mean(0)
    return (mean / mean.norm()).numpy()  # type: ignore[no-any-return]


def test_vectors_equal_transformers(encoder: Path, llm: LLM) -> None:
    assert llm.tokenizer is not None
    for text, vector in zip(texts(), llm.embed(texts()), strict=True):
        np.testing.assert_allclose(vector, expected(encoder, llm.tokenizer.encode(text)), atol=1e-5)


def test_a_text_alone_has_the_same_bits(llm: LLM) -> None:
    assert [llm.embed([text])[0] for text in texts()] == llm.embed(texts())


def test_what_is_asked_for_in_python(llm: LLM) -> None:
    whole = np.array(llm.embed(texts()))
    asked = llm.embed([f"word1 word2 {text}" for text in texts()])
    assert llm.embed(texts(), input_type="query") == asked
    short = np.array(llm.embed(texts(), dimensions=8))
    np.testing.assert_allclose(short, whole[:, :8] / np.linalg.norm(whole[:, :8], axis=1, keepdims=True), atol=1e-6)
    integers = np.array(llm.embed(texts(), output_dtype="int8"))
    np.testing.assert_allclose(integers * np.abs(whole).max(1, keepdims=True) / 127, whole, atol=0.002)
    assert llm.embed(texts(), output_dtype="ubinary") == np.packbits(whole > 0, axis=1).tolist()
    with pytest.raises(InvalidParameter, match="has the prompts query"):
        llm.embed(texts(), input_type="passage")
    for ids in ([5, 6], {"prompt_token_ids": [5, 6]}):
        with pytest.raises(InvalidParameter, match="token ids have no prompt"):
            llm.embed(ids, input_type="query")  # type: ignore[arg-type]


def test_more_texts_than_run_at_a_time(llm: LLM) -> None:
    many = texts() * 20
    assert llm.embed(many) == llm.embed(texts()) * 20
    assert (llm.load.running, llm.load.waiting) == (0, 0)


def test_what_is_of_generation_is_refused(encoder: Path, llm: LLM) -> None:
    with pytest.raises(InvalidParameter, match="it is an encoder and generates nothing"):
        llm.generate(["word1"])
    with pytest.raises(ContextLengthExceeded, match="48 tokens"):
        llm.embed([" ".join(WORDS[:60])])
    for options, message in (
        ({"kv_disk": "/nowhere"}, "--kv-disk is of no use with an encoder"),
        ({"kv_cache_dtype": "int8"}, "--kv-cache-dtype is of no use"),
        ({"speculative": "ngram"}, "--speculative is of no use"),
        ({"kv_policy": "h2o:64"}, "--kv-policy is of no use"),
        ({"static_batching": True}, "--static-batching is of no use"),
        ({"max_num_batched_tokens": 32, "max_num_seqs": 4}, "less than a text of 48 tokens"),
        ({"max_model_len": 65}, "beyond the 64 positions"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            LLM(str(encoder), **options)  # type: ignore[arg-type]
    assert len(LLM(str(encoder), max_model_len=64).embed([" ".join(WORDS[:60])])[0]) == 32


def test_what_writes_and_judges_models_says_what_an_encoder_is(encoder: Path, tmp_path: Path) -> None:
    def run(*command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "penstock.cli.main", *command], capture_output=True, text=True, check=False
        )

    refused = run("quantize", str(encoder), "--method", "awq", "--out", str(tmp_path / "out"))
    assert refused.returncode != 0 and "writes encoders with --method gptq or rtn" in refused.stderr
    judged = run("doctor", str(encoder))
    assert "prompts at best" in judged.stdout and "room for sequences" not in judged.stdout, judged.stderr


def test_over_http(encoder: Path, llm: LLM, client_of: Callable[[RunningServer], openai.OpenAI]) -> None:
    with serving(encoder, "--max-num-seqs", "4") as server:
        client = client_of(server)

        def vectors(given: Any, **extra: Any) -> list[list[float]]:
            made = client.embeddings.create(model="tiny-bert", input=given, encoding_format="float", extra_body=extra)
            return [each.embedding for each in made.data]

        np.testing.assert_allclose(vectors(texts()), llm.embed(texts()), atol=1e-7)
        asked = llm.embed([f"word1 word2 {text}" for text in texts()])
        np.testing.assert_allclose(vectors(texts(), input_type="query"), asked, atol=1e-7)
        short = np.array(vectors(texts(), dimensions=8))
        assert short.shape == (5, 8) and math.isclose(float(np.linalg.norm(short[0])), 1.0, rel_tol=1e-6)
        np.testing.assert_allclose(vectors(texts(), pooling="cls"), llm.embed(texts(), "cls"), atol=1e-7)
        probe = json.loads(server.get("/health/deep"))
        assert (probe["status"], probe["tokens"]) == ("encoding", 0)
        for asking, message in (
            (lambda: vectors("word1", input_type="passage"), "it has the prompts query"),
            (lambda: vectors([[5, 6]], input_type="query"), "token ids have no prompt"),
            (lambda: vectors(" ".join(WORDS)), "62 tokens"),
            (lambda: client.completions.create(model="tiny-bert", prompt="word1"), "generates no text"),
        ):
            with pytest.raises(openai.BadRequestError, match=message):
                asking()
