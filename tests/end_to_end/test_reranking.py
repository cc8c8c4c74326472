"""A cross-encoder from a checkpoint to ranks, in Python and over HTTP."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
import transformers

from penstock import LLM
from penstock.core.errors import ContextLengthExceeded, InvalidParameter
from support.live_server import RunningServer, serving
from support.tokenizers_made import write_words

WORDS = [f"word{number}" for number in range(60)]
QUERY = "word1 word2 word3"
SIZES = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}


@pytest.fixture(scope="module")
def reranker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small BERT with random weights and one label, as sentence-transformers saves a CrossEncoder."""
    folder = tmp_path_factory.mktemp("models") / "tiny-reranker"
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=80, max_position_embeddings=64, initializer_range=0.3, num_labels=1, **SIZES
    )
    config.sentence_transformers = {"activation_fn": "torch.nn.modules.activation.Sigmoid", "version": "5.0.0"}
    transformers.BertForSequenceClassification(config).save_pretrained(folder)
    write_words(folder, WORDS)
    modules = [{"path": "", "type": "sentence_transformers.base.modules.transformer.Transformer"}]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 48}))
    return folder


@pytest.fixture(scope="module")
def llm(reranker: Path) -> LLM:
    return LLM(str(reranker), max_num_seqs=8)


def documents() -> list[str]:
    return [" ".join(WORDS[first : first + count]) for first, count in ((0, 1), (5, 30), (7, 2), (20, 17), (3, 9))]


@pytest.fixture(scope="module")
def right(reranker: Path) -> list[float]:
    """Scores as transformers has them, with a sigmoid."""
    model = transformers.BertForSequenceClassification.from_pretrained(reranker).eval()
    # As a BertTokenizer, it has types of tokens, too.
    names = ["input_ids", "token_type_ids", "attention_mask"]
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(reranker / "tokenizer.json"), model_input_names=names
    )
    with torch.inference_mode():
        return [float(model(**tokenizer(QUERY, text, return_tensors="pt")).logits.sigmoid()) for text in documents()]


def test_scores_equal_transformers(llm: LLM, right: list[float]) -> None:
    assert llm.score(QUERY, documents()) == pytest.approx(right, abs=1e-5)
    order = sorted(range(len(right)), key=lambda index: -right[index])
    ranks = llm.rerank(QUERY, documents(), top_n=3)
    assert [each.index for each in ranks] == order[:3]
    assert [each.document for each in ranks] == [documents()[index] for index in order[:3]]
    assert max(right) - min(right) > 0.05, "ranks of the same scores would say nothing"


def test_a_pair_alone_has_the_same_bits(llm: LLM) -> None:
    alone = [llm.score(QUERY, text)[0] for text in documents()]
    assert alone == llm.score(QUERY, documents()) == llm.score([QUERY] * 5, documents())
    assert llm.score(QUERY, documents() * 40) == alone * 40


def test_what_is_of_other_models_is_refused(llm: LLM) -> None:
    with pytest.raises(InvalidParameter, match="it scores pairs of texts; ask /v1/rerank"):
        llm.embed("word1")
    with pytest.raises(InvalidParameter, match="generates nothing"):
        llm.generate("word1")
    with pytest.raises(ContextLengthExceeded, match="48 tokens"):
        llm.score(QUERY, [" ".join(WORDS)])
    with pytest.raises(InvalidParameter, match="2 texts cannot be scored with 3"):
        llm.score(["a", "b"], ["a", "b", "c"])


@pytest.fixture(scope="module")
def server(reranker: Path) -> Iterator[RunningServer]:
    with serving(reranker, "--max-num-seqs", "4") as running:
        yield running


def ask(server: RunningServer, path: str, **fields: Any) -> Any:
    return httpx.post(server.base + path, json=fields, timeout=60)


def test_over_http(server: RunningServer, llm: LLM) -> None:
    scores = llm.score(QUERY, documents())
    order = sorted(range(5), key=lambda index: -scores[index])
    for path, told in (("/v1/rerank", True), ("/rerank", True), ("/v2/rerank", False)):
        body = ask(server, path, model="tiny-reranker", query=QUERY, documents=documents(), top_n=3).json()
        assert [each["index"] for each in body["results"]] == order[:3]
        assert [each["relevance_score"] for each in body["results"]] == [scores[index] for index in order[:3]]
        texts = [each.get("document", {}).get("text") for each in body["results"]]
        assert texts == ([documents()[index] for index in order[:3]] if told else [None] * 3)
    tei = ask(server, "/rerank", query=QUERY, texts=documents(), return_text=True).json()
    assert tei == [{"index": index, "score": scores[index], "text": documents()[index]} for index in order]
    body = ask(server, "/v1/score", text_1=QUERY, text_2=documents()).json()
    assert [each["score"] for each in body["data"]] == scores
    raw = ask(server, "/score", queries=QUERY, documents=documents(), use_activation=False).json()
    assert [each["score"] for each in raw["data"]] == llm.score(QUERY, documents(), use_activation=False)
    classes = ask(server, "/v1/classify", input=documents()).json()
    assert [each["probs"][0] for each in classes["data"]] == [
        each.scores["LABEL_0"] for each in llm.classify(documents())
    ]
    pairs = ask(server, "/predict", inputs=[[QUERY, text] for text in documents()]).json()
    assert pairs == [[{"score": score, "label": "LABEL_0"}] for score in scores]


def test_more_texts_than_run_at_a_time(server: RunningServer, llm: LLM) -> None:
    body = ask(server, "/v1/score", text_1=QUERY, text_2=documents() * 240).json()
    assert [each["score"] for each in body["data"]] == llm.score(QUERY, documents()) * 240


def test_what_is_cut_is_told(server: RunningServer, llm: LLM) -> None:
    long = " ".join(WORDS)
    refused = ask(server, "/v1/rerank", query=QUERY, documents=["word1", long])
    assert refused.status_code == 400
    message = refused.json()["error"]["message"]
    assert message.startswith("documents[1] with query has 66 tokens; this model's maximum context length is 48")
    body = ask(server, "/v1/rerank", query=QUERY, documents=["word1", long], truncate_prompt_tokens=-1).json()
    assert body["usage"]["truncated_tokens"] == 18
    kept = " ".join(WORDS[:42])
    scores = {each["index"]: each["relevance_score"] for each in body["results"]}
    assert scores[1] == llm.score(QUERY, kept)[0]
    tei = ask(server, "/rerank", query=QUERY, texts=[long], truncate=True, truncation_direction="left")
    assert tei.json()[0]["score"] == llm.score(QUERY, " ".join(WORDS[-42:]))[0]
    assert tei.headers["x-penstock-truncated-tokens"] == "18"
    per_document = ask(server, "/v2/rerank", query=QUERY, documents=[long], max_tokens_per_doc=5).json()
    assert per_document["results"][0]["relevance_score"] == llm.score(QUERY, " ".join(WORDS[:5]))[0]
    assert per_document["usage"]["truncated_tokens"] == 55


def test_other_endpoints_say_which_would_work(server: RunningServer) -> None:
    for path, fields in (
        ("/v1/embeddings", {"input": "word1"}),
        ("/embed", {"inputs": "word1"}),
        ("/v1/completions", {"prompt": "word1"}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "word1"}]}),
        ("/v1/responses", {"input": "word1"}),
        ("/v1/messages", {"messages": [{"role": "user", "content": "word1"}], "max_tokens": 5}),
    ):
        answer = ask(server, path, **fields)
        assert answer.status_code == (422 if path == "/embed" else 400), path
        assert "it scores pairs of texts; ask /v1/rerank, /v1/score or /v1/classify" in answer.text
