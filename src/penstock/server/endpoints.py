"""Every endpoint, as the API's description has it; a test holds the list to the application's routes."""

from typing import Any

from penstock.api import answers, requests
from penstock.api.anthropic import answers as messages_answers
from penstock.api.anthropic import schema as messages_schema
from penstock.api.openai import answers as openai_answers
from penstock.api.openai import schema, tokens
from penstock.api.responses import answers as responses_answers
from penstock.api.responses import schema as responses_schema
from penstock.api.scoring import answers as scoring_answers
from penstock.api.scoring import fields as scoring
from penstock.api.translation import schema as translation
from penstock.batches import answers as batch_answers
from penstock.batches import endpoints as batches
from penstock.observability.explain.explanation import Explanation, RequestList
from penstock.observability.stats import Stats
from penstock.routing.told import ReplicaState
from penstock.server import answers as server_answers
from penstock.server.openapi import DescribedEndpoint

_PAGE: dict[str, dict[str, Any]] = {"limit": {"type": "integer", "minimum": 1}, "after": {"type": "string"}}
_OF_MODEL: dict[str, dict[str, Any]] = {"model": {"type": "string"}}
_DONE = "[DONE]"
_ORDERED = {**_PAGE, "order": {"enum": ["asc", "desc"]}}


def _stored(method: str, path: str, summary: str, answer: Any, **others: Any) -> DescribedEndpoint:
    """An endpoint over what is stored; where nothing is, it answers 404 as well."""
    return DescribedEndpoint(method, path, summary, answer, errors=(403, 409, 413, 429, 507), **others)


def _scoring(name: str, summary: str, answer: Any, body: Any, other: str) -> tuple[DescribedEndpoint, ...]:
    """An endpoint of scores by its two paths."""
    rules = scoring.RERANK_RULES if name == "rerank" else scoring.RULES
    paths = (f"/v1/{name}", other)
    return tuple(
        DescribedEndpoint("POST", path, summary, answer, body, rules=rules, errors=(504,), alias=path == f"/{name}")
        for path in paths
    )


def _anthropic(path: str, summary: str, answer: Any, body: Any, events: tuple[Any, ...] = ()) -> DescribedEndpoint:
    return DescribedEndpoint(
        "POST",
        path,
        summary,
        answer,
        body,
        rules=messages_schema.RULES,
        events=events,
        errors=(504, 529),
        error=messages_answers.AnthropicError,
    )


ENDPOINTS = (
    DescribedEndpoint(
        "POST",
        "/v1/chat/completions",
        "Answer a conversation",
        openai_answers.ChatCompletion,
        requests.ChatFields,
        rules=schema.RULES,
        events=(openai_answers.ChatChunk, answers.ErrorAnswer),
        last_event=_DONE,
        errors=(504,),
    ),
    DescribedEndpoint(
        "POST",
        "/v1/completions",
        "Continue texts",
        openai_answers.Completion,
        requests.CompletionFields,
        rules=schema.COMPLETION_RULES,
        events=(openai_answers.CompletionChunk, answers.ErrorAnswer),
        last_event=_DONE,
        errors=(504,),
    ),
    DescribedEndpoint(
        "POST",
        "/v1/embeddings",
        "Make vectors of texts",
        openai_answers.Embeddings,
        requests.EmbeddingFields,
        rules=schema.EMBEDDING_RULES,
        errors=(504,),
    ),
    *_scoring("rerank", "Sort documents by a query", scoring_answers.Ranks, scoring.RerankFields, "/v2/rerank"),
    DescribedEndpoint(
        "POST",
        "/rerank",
        "Sort documents by a query, in Jina's form or TEI's",
        scoring_answers.Ranks | list[scoring_answers.TeiRank],
        scoring.EitherRerankFields,
        rules=scoring.RERANK_RULES,
        errors=(422, 504),
        error=scoring_answers.EitherError,
        alias=True,
    ),
    *_scoring("score", "Score pairs of texts", scoring_answers.Scores, scoring.ScoreFields, "/score"),
    *_scoring("classify", "Sort texts into classes", scoring_answers.ClassList, scoring.ClassifyFields, "/classify"),
    DescribedEndpoint(
        "POST",
        "/predict",
        "Sort texts into classes, in TEI's form",
        list[scoring_answers.TeiClass | list[scoring_answers.TeiClass]],
        scoring.TeiPredictFields,
        rules=scoring.RULES,
        errors=(422, 504),
        error=scoring_answers.TeiError,
    ),
    DescribedEndpoint(
        "POST",
        "/embed",
        "Make vectors of texts, in TEI's form",
        list[list[float]],
        scoring.TeiEmbedFields,
        rules=scoring.RULES,
        errors=(422, 504),
        error=scoring_answers.TeiError,
    ),
    DescribedEndpoint(
        "POST",
        "/v1/responses",
        "Answer a conversation, which is kept",
        responses_answers.ResponseAnswer,
        responses_schema.ResponsesFields,
        rules=responses_schema.RULES,
        events=(responses_answers.ResponseEvent,),
        errors=(504, 507),
    ),
    DescribedEndpoint(
        "POST",
        "/v1/responses/input_tokens",
        "Count a prompt's tokens",
        responses_answers.InputTokens,
        responses_schema.InputFields,
        rules=responses_schema.RULES,
    ),
    DescribedEndpoint("GET", "/v1/responses/{id}", "A kept response", responses_answers.ResponseAnswer),
    DescribedEndpoint("DELETE", "/v1/responses/{id}", "Forget a response", answers.Deleted),
    DescribedEndpoint(
        "POST", "/v1/responses/{id}/cancel", "End a response that is being streamed", responses_answers.ResponseAnswer
    ),
    DescribedEndpoint(
        "GET",
        "/v1/responses/{id}/input_items",
        "What a response was asked",
        responses_answers.InputItems,
        query=_ORDERED,
    ),
    _anthropic(
        "/v1/messages",
        "Answer a conversation",
        messages_answers.MessageAnswer,
        messages_schema.MessagesFields,
        (messages_answers.MessageEvent,),
    ),
    _anthropic(
        "/v1/messages/count_tokens",
        "Count a prompt's tokens",
        messages_answers.CountedTokens,
        messages_schema.PromptFields,
    ),
    _stored("GET", "/v1/files", "All files", batch_answers.FileList, query={**_ORDERED, "purpose": {"type": "string"}}),
    _stored(
        "POST",
        "/v1/files",
        "Store a file",
        batch_answers.FileAnswer,
        body=batch_answers.Upload,
        body_media="multipart/form-data",
    ),
    _stored("GET", "/v1/files/{id}", "A file", batch_answers.FileAnswer),
    _stored("DELETE", "/v1/files/{id}", "Delete a file", answers.Deleted),
    _stored("GET", "/v1/files/{id}/content", "A file's contents", None, media="application/octet-stream"),
    _stored("GET", "/v1/batches", "All batches", batch_answers.BatchList, query=_PAGE),
    _stored("POST", "/v1/batches", "Run the requests in a file", batch_answers.BatchAnswer, body=batches.BatchFields),
    _stored("GET", "/v1/batches/{id}", "A batch", batch_answers.BatchAnswer),
    _stored("POST", "/v1/batches/{id}/cancel", "End a batch", batch_answers.BatchAnswer),
    DescribedEndpoint(
        "POST",
        "/tokenize",
        "Tokens of a text or a conversation",
        openai_answers.Tokens,
        tokens.TokenizeFields,
        rules=tokens.RULES,
    ),
    DescribedEndpoint("POST", "/detokenize", "The text of tokens", openai_answers.Prompt, tokens.DetokenizeFields),
    DescribedEndpoint(
        "POST",
        "/translate",
        "Translate texts",
        translation.Translation,
        translation.TranslateFields,
        rules=translation.RULES,
        errors=(504,),
        error=translation.TranslationError,
    ),
    DescribedEndpoint(
        "GET",
        "/languages",
        "Languages that are translated",
        list[translation.Language],
        error=translation.TranslationError,
    ),
    DescribedEndpoint("GET", "/v1/models", "What is served", openai_answers.ModelList),
    DescribedEndpoint("GET", "/v1/models/{name}", "A model", openai_answers.ModelCard),
    DescribedEndpoint(
        "GET",
        "/v1/requests",
        "Recent requests, and what took their time",
        RequestList,
        query={"limit": {"type": "integer", "minimum": 1}, "order": {"enum": ["newest", "slowest"]}},
    ),
    DescribedEndpoint("GET", "/v1/requests/{id}/explain", "Where a request's time went", Explanation),
    DescribedEndpoint("GET", "/version", "The release", server_answers.Version),
    DescribedEndpoint(
        "GET", "/health", "The same as /health/ready", server_answers.Readiness, query=_OF_MODEL, open=True
    ),
    DescribedEndpoint("GET", "/health/live", "Whether this process answers", server_answers.Status, open=True),
    DescribedEndpoint(
        "GET",
        "/health/ready",
        "Whether requests can be served now",
        server_answers.Readiness,
        query=_OF_MODEL,
        open=True,
    ),
    DescribedEndpoint(
        "GET",
        "/health/deep",
        "Whether each engine computes: ten tokens, or a vector",
        server_answers.DeepHealth,
        query=_OF_MODEL,
    ),
    DescribedEndpoint("GET", "/metrics", "Figures for Prometheus", None, media="text/plain"),
    DescribedEndpoint(
        "GET", "/v1/stats", "What a model does, now, in the last minute, and since the start", Stats, query=_OF_MODEL
    ),
    DescribedEndpoint("GET", "/v1/replica", "The state of this replica, for gateways", ReplicaState),
    DescribedEndpoint("GET", "/openapi.json", "This description", dict[str, Any]),
    DescribedEndpoint("GET", "/docs", "This description for people", None, media="text/html"),
    DescribedEndpoint(
        "GET", "/", "The live page; its scripts and styles are below /page", None, media="text/html", open=True
    ),
)
