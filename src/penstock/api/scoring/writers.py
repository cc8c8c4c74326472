"""Responses with scores and classes, in the forms of each API."""

import time
from typing import Any

import msgspec

from penstock.api.maxsim import compared, maxsim
from penstock.api.scored import Scored
from penstock.api.vector_writer import Computed
from penstock.core.scores import cosine, floats_in, placed_scores, ranked, scores_of
from penstock.text.tokenizer import Place


class Answer:
    """What was computed, as writers of bodies read it.

    Attributes:
        id, model: of the response.
        scored: how it is told.
        scores: of each prompt, those of its classes; of models that make vectors, that of each pair. Where tokens have
            classes, there are none: `tokens` has those of each.
    """

    def __init__(self, computed: Computed, model: str) -> None:
        self.id, job, vectors, self._cached = computed
        assert job.scored is not None, "the job asks for scores"
        self.model, self._job, self._vectors = model, job, vectors
        self.scored: Scored = job.scored
        self.scores: list[list[float]] = []
        if self.scored.places:
            return
        if job.late:
            size = len(floats_in(vectors[0])) // len(job.late[0].ids)
            parts = [compared(text, vector) for text, vector in zip(job.late, vectors, strict=True)]
            self.scores = [[maxsim(parts[one], parts[other], size)] for one, other in self.scored.compared]
        elif self.scored.compared:
            numbers = list(map(floats_in, vectors))
            self.scores = [[cosine(numbers[one], numbers[other])] for one, other in self.scored.compared]
        else:
            self.scores = [scores_of(floats_in(vector), self.scored.activation) for vector in vectors]

    @property
    def usage(self) -> dict[str, Any]:
        """Tokens of the request, and how many of its texts were left out where that was asked for."""
        tokens, cut = self._job.prompt_tokens, self._job.cut
        return {
            "prompt_tokens": tokens,
            "total_tokens": tokens,
            "completion_tokens": 0,
            "prompt_tokens_details": {"cached_tokens": self._cached},
            **({} if cut is None else {"truncated_tokens": cut}),
        }

    def tokens(self, index: int) -> list[tuple[Place, list[float]]]:
        """Where tokens of a text stand in it, and their scores; without what was put around it."""
        scored = self.scored
        return placed_scores(
            scored.places[index], floats_in(self._vectors[index]), len(scored.labels), scored.activation
        )

    def ranks(self) -> list[tuple[int, float]]:
        """Indices of documents and their scores, the best first; not more than were asked for."""
        scores = [each[0] for each in self.scores]
        return [(index, scores[index]) for index in ranked(scores, self.scored.most)]


def write_rerank(answer: Answer) -> Any:
    """As Jina, Cohere and vLLM have it: `meta` is Cohere's, `usage` the others'."""
    texts = answer.scored.texts
    return {
        "id": answer.id,
        "model": answer.model,
        "usage": answer.usage,
        "meta": {"billed_units": {"search_units": 1}, "tokens": {"input_tokens": answer.usage["prompt_tokens"]}},
        "results": [
            {
                "index": index,
                "relevance_score": score,
                **({} if texts is None else {"document": {"text": texts[index]}}),
            }
            for index, score in answer.ranks()
        ],
    }


def write_scores(answer: Answer) -> Any:
    """A score for each pair, as vLLM has it."""
    data = [{"index": index, "object": "score", "score": each[0]} for index, each in enumerate(answer.scores)]
    return _listed(answer, data)


def write_classes(answer: Answer) -> Any:
    """As vLLM has it: the likeliest class of each text, and the scores of all; or the likeliest class of each token."""
    labels, data = answer.scored.labels, list[dict[str, Any]]()
    for index in range(len(answer.scored.places)):
        tokens = [
            {"start": start, "end": end, "label": labels[best], "score": scores[best]}
            for (start, end), scores in answer.tokens(index)
            for best in ranked(scores, 1)
        ]
        data.append({"index": index, "tokens": tokens, "num_classes": len(labels)})
    for index, scores in enumerate(answer.scores):
        best = ranked(scores, 1)[0]
        data.append({"index": index, "label": labels[best], "probs": scores, "num_classes": len(scores)})
    return _listed(answer, data)


def write_tei_ranks(answer: Answer) -> Any:
    """As TEI's `/rerank` has it."""
    texts = answer.scored.texts
    return [
        {"index": index, "score": score, **({} if texts is None else {"text": texts[index]})}
        for index, score in answer.ranks()
    ]


def write_tei_classes(answer: Answer) -> Any:
    """As TEI's `/predict` has it: all classes of each text, the likeliest first."""
    labels = answer.scored.labels
    made = [[{"score": scores[index], "label": labels[index]} for index in ranked(scores)] for scores in answer.scores]
    return made[0] if answer.scored.single else made


def _listed(answer: Answer, data: list[dict[str, Any]]) -> Any:
    return {
        "id": answer.id,
        "object": "list",
        "created": int(time.time()),
        "model": answer.model,
        "data": data,
        "usage": answer.usage,
    }


def write_tei_vectors(computed: Computed) -> bytes:
    """As TEI's `/embed` has them."""
    form = computed.job.form
    assert form is not None, "the job asks for vectors"
    # One by one, since the encoder lets nothing else run.
    return msgspec.json.encode(
        [msgspec.Raw(msgspec.json.encode(form.of(vector).tolist())) for vector in computed.vectors]
    )
