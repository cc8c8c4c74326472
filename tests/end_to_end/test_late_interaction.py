"""Models of late interaction: a vector for each token, as ColBERT's own code and PyLate make them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import openai
import pytest
import torch
import transformers
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file

from penstock import LLM
from penstock.api.maxsim import maxsim
from penstock.cli.quantize import Source, run_quantize
from penstock.core.errors import ContextLengthExceeded, InvalidParameter, ModelFileError, UnsupportedModel
from penstock.quantization.recipe import Recipe
from penstock.quantization.rtn import Grid
from support.live_server import RunningServer, serving
from support.tokenizers_made import write_words

WORDS = ["[unused0]", "[unused1]", "[Q]", "[D]", ",", ".", *(f"word{number}" for number in range(60))]
SIZE = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 4, "num_attention_heads": 2}
SPECIAL = {"bos_token_id": 2, "eos_token_id": 3, "cls_token_id": 2, "sep_token_id": 3, "pad_token_id": 0}
QUERIES = ["word1", "word2 word3, word4 word5", "word6 word7 word8 word9 word10"]
DOCUMENTS = ["word2, word3. word4", "word5", " ".join(f"word{number}," for number in range(20, 38))]
QUERY_LENGTH, DOCUMENT_LENGTH, NUMBERS = 24, 40, 16
CLS, MASK = 2, 4


class Made(NamedTuple):
    """A checkpoint: its folder, transformers' model, the projection, and the ids of both markers."""

    folder: Path
    model: Any
    weight: torch.Tensor
    markers: tuple[int, int]


def _saved(folder: Path, config: Any) -> tuple[Any, torch.Tensor]:
    torch.manual_seed(0)
    model = transformers.AutoModel.from_config(config, attn_implementation="eager").eval()
    model.save_pretrained(folder)
    write_words(folder, WORDS)
    return model, torch.randn(NUMBERS, SIZE["hidden_size"]) / 4


def colbert(folder: Path, *, seen: bool, **more: Any) -> Made:
    """As ColBERT's own code saves a model."""
    config = transformers.BertConfig(vocab_size=80, max_position_embeddings=64, initializer_range=0.3, **SIZE)
    model, weight = _saved(folder, config)
    tensors = {f"bert.{name}": tensor for name, tensor in load_file(folder / "model.safetensors").items()}
    save_file({**tensors, "linear.weight": weight}, folder / "model.safetensors")
    said = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**said, "architectures": ["HF_ColBERT"]}))
    metadata = {
        "query_token_id": "[unused0]",
        "doc_token_id": "[unused1]",
        "query_maxlen": QUERY_LENGTH,
        "doc_maxlen": DOCUMENT_LENGTH,
        "dim": NUMBERS,
        "similarity": "cosine",
        "mask_punctuation": True,
        "attend_to_mask_tokens": seen,
        **more,
    }
    (folder / "artifact.metadata").write_text(json.dumps(metadata))
    return Made(folder, model, weight, (5, 6))


def pylate(folder: Path, *, seen: bool, local: int = 48, **more: Any) -> Made:
    """As PyLate saves a model, here of ModernBERT, of whose layers most have a window."""
    config = transformers.ModernBertConfig(
        vocab_size=80, max_position_embeddings=64, initializer_range=0.3, local_attention=local, **SIZE, **SPECIAL
    )
    model, weight = _saved(folder, config)
    (folder / "1_Dense").mkdir()
    dense = {"in_features": SIZE["hidden_size"], "out_features": NUMBERS, "bias": False}
    dense["activation_function"] = "torch.nn.modules.linear.Identity"
    (folder / "1_Dense" / "config.json").write_text(json.dumps(dense))
    save_file({"linear.weight": weight}, folder / "1_Dense" / "model.safetensors")
    modules = [("", "sentence_transformers.models.Transformer"), ("1_Dense", "pylate.models.Dense.Dense")]
    (folder / "modules.json").write_text(json.dumps([{"path": path, "type": kind} for path, kind in modules]))
    settings = {
        "query_prefix": "[Q]",
        "document_prefix": "[D]",
        "query_length": QUERY_LENGTH,
        "document_length": DOCUMENT_LENGTH,
        "attend_to_expansion_tokens": seen,
        "skiplist_words": [",", "."],
        **more,
    }
    (folder / "config_sentence_transformers.json").write_text(json.dumps(settings))
    return Made(folder, model, weight, (7, 8))


MAKERS: dict[str, Callable[..., Made]] = {"colbert": colbert, "pylate": pylate}


@torch.inference_mode()
def expected(made: Made, llm: LLM, text: str, kind: str, *, seen: bool) -> NDArray[np.float32]:
    """By transformers: padding is what others do not see."""
    assert llm.tokenizer is not None
    ids = llm.tokenizer.encode(text)
    ids = [ids[0], made.markers[kind == "document"], *ids[1:]]
    mask = [1] * len(ids)
    if kind == "query":
        filled = QUERY_LENGTH - len(ids)
        ids, mask = ids + [MASK] * filled, mask + [int(seen)] * filled
    states = made.model(torch.tensor([ids]), attention_mask=torch.tensor([mask])).last_hidden_state[0]
    vectors = torch.nn.functional.normalize(states @ made.weight.T, dim=-1)
    skipped = [llm.tokenizer.token_id(",") if kind == "document" else -1, llm.tokenizer.token_id(".")]
    kept = [place for place, token in enumerate(ids) if kind == "query" or token not in skipped]
    return vectors[kept].numpy()  # type: ignore[no-any-return]


@pytest.mark.parametrize("maker", MAKERS)
@pytest.mark.parametrize("seen", [False, True])
def test_vectors_equal_transformers(tmp_path: Path, maker: str, seen: bool) -> None:
    made = MAKERS[maker](tmp_path, seen=seen)
    llm = LLM(str(made.folder), max_num_seqs=8)
    found = llm.embed_tokens(QUERIES, input_type="query")
    for text, vectors in zip(QUERIES, found, strict=True):
        assert len(vectors) == QUERY_LENGTH
        np.testing.assert_allclose(vectors, expected(made, llm, text, "query", seen=seen), atol=2e-5)
    of_documents = llm.embed_tokens(DOCUMENTS)
    for text, vectors in zip(DOCUMENTS, of_documents, strict=True):
        np.testing.assert_allclose(vectors, expected(made, llm, text, "document", seen=seen), atol=2e-5)
    assert [len(vectors) for vectors in of_documents] == [6, 4, 21]
    # Alone, the same bits.
    assert [llm.embed_tokens(text, input_type="query")[0] for text in QUERIES] == found
    if not seen:
        other = expected(made, llm, QUERIES[0], "query", seen=True)
        assert np.abs(np.array(found[0]) - other).max() > 0.01


def test_queries_may_stay_short(tmp_path: Path) -> None:
    llm = LLM(str(pylate(tmp_path, seen=False, do_query_expansion=False, query_prefix="[Q]").folder))
    assert [len(vectors) for vectors in llm.embed_tokens(QUERIES, input_type="query")] == [4, 8, 8]


def test_what_cannot_be_is_refused(tmp_path: Path) -> None:
    made = colbert(tmp_path / "model", seen=False)
    llm = LLM(str(made.folder))
    with pytest.raises(InvalidParameter, match="each token has a vector; use LLM.embed_tokens"):
        llm.embed("word1")
    with pytest.raises(InvalidParameter, match="neither query nor document"):
        llm.embed_tokens("word1", input_type="passage")
    with pytest.raises(InvalidParameter, match="must be a text"):
        llm.embed_tokens({"prompt_token_ids": [5]})
    with pytest.raises(ContextLengthExceeded, match="The query has 33 tokens, and this model takes 24"):
        llm.embed_tokens(" ".join(WORDS[10:40]), input_type="query")
    with pytest.raises(UnsupportedModel, match="similarity = 'l2'"):
        LLM(str(colbert(tmp_path / "l2", seen=False, similarity="l2").folder))
    with pytest.raises(UnsupportedModel, match="some of which would see nothing"):
        LLM(str(pylate(tmp_path / "narrow", seen=False, local=16).folder))
    (made.folder / "artifact.metadata").unlink()
    with pytest.raises(ModelFileError, match=r"has a tensor linear.weight, .* but no artifact.metadata"):
        LLM(str(made.folder))


def test_with_fewer_bits(tmp_path: Path) -> None:
    made, out = colbert(tmp_path / "model", seen=False), tmp_path / "out"
    recipe = Recipe("rtn", Grid(8, 0), "compressed-tensors")
    run_quantize(str(made.folder), recipe, Source(None, None, None), out, 1)
    exact, found = (LLM(str(folder)).embed_tokens(DOCUMENTS) for folder in (made.folder, out))
    for one, other in zip(exact, found, strict=True):
        assert 0.97 < (np.array(one) * np.array(other)).sum(1).min() < 1 - 1e-7


def test_over_http(tmp_path: Path, client_of: Callable[[RunningServer], openai.OpenAI]) -> None:
    made = colbert(tmp_path / "tiny-colbert", seen=False)
    llm = LLM(str(made.folder))
    with serving(made.folder, "--max-num-seqs", "4") as server:
        client = client_of(server)

        def vectors(given: Any, **extra: Any) -> list[Any]:
            # Without a format, the client asks for base64, and reads lists as they are.
            made = client.embeddings.create(model="tiny-colbert", input=given, extra_body=extra)
            return [each.embedding for each in made.data]

        for kind, texts in (("query", QUERIES), ("document", DOCUMENTS)):
            found, own = vectors(texts, input_type=kind), llm.embed_tokens(texts, input_type=kind)
            for one, other in zip(found, own, strict=True):
                np.testing.assert_allclose(one, other, atol=1e-7)
        assert vectors(DOCUMENTS) == vectors(DOCUMENTS, input_type="document")
        bits = llm.embed_tokens(DOCUMENTS, output_dtype="ubinary")
        assert vectors(DOCUMENTS, output_dtype="ubinary") == bits and len(bits[0][0]) == 2
        # Cut, it has the longest length and keeps the last special token.
        (cut,) = vectors([" ".join(WORDS[10:50])], truncate_prompt_tokens=-1)
        assert len(cut) == DOCUMENT_LENGTH
        for extra, message in (
            ({"input_type": "passage"}, "neither query nor document"),
            ({"pooling": "mean"}, "has a vector for each token"),
            ({"truncate_prompt_tokens": 5}, "leave it out, or send -1"),
        ):
            with pytest.raises(openai.BadRequestError, match=message):
                vectors("word1", **extra)
        queries, documents = (
            np.array(llm.embed_tokens(QUERIES[1], input_type="query")[0]),
            llm.embed_tokens(DOCUMENTS),
        )
        right = [float((queries @ np.array(each).T).max(axis=1).sum()) for each in documents]
        assert llm.score(QUERIES[1], DOCUMENTS) == pytest.approx(right, abs=1e-5)
        asked = {"query": QUERIES[1], "documents": DOCUMENTS}
        ranks: Any = server.post("/v1/rerank", asked)["results"]
        assert [each["index"] for each in ranks] == sorted(range(3), key=lambda index: -right[index])
        assert sorted(each["relevance_score"] for each in ranks) == pytest.approx(sorted(right), abs=1e-5)
        for wrong, message in (([[5, 6]], "must be a text"), (" ".join(WORDS[10:60]), "this model takes 40")):
            with pytest.raises(openai.BadRequestError, match=message):
                vectors(wrong)


def test_scores_are_sums_of_the_best() -> None:
    luck = np.random.default_rng(0)
    query, document = (luck.normal(size=(count, 8)).astype(np.float32) for count in (5, 9))
    right = sum(max(float(a @ b) for b in document.astype(float)) for a in query.astype(float))
    assert maxsim(query.tobytes(), document.tobytes(), 8) == pytest.approx(right)
    assert maxsim(query.tobytes(), b"", 8) == 0.0
