"""Responses of `/v1/embeddings`: vectors, as numbers or in base64."""

import base64
import sys
import uuid
from typing import Any

import msgspec

from penstock.api.job import Job
from penstock.core.vectors import pooled_tokens
from penstock.engine.interface import RequestOutput
from penstock.http.error_bodies import PLAIN, ErrorForm


class EmbeddingWriter:
    """Collects the vectors of a job and writes the response; the output of prompt p has the sample index p.

    Attributes:
        id: the request's id, in the log only.
        errors: how an error is written.
        completion_tokens, cut, enough: there are no tokens, so that nothing can be complete before the engine says so.
    """

    errors: ErrorForm = PLAIN
    completion_tokens = 0
    cut = 0
    enough = False

    def __init__(self, job: Job, model: str) -> None:
        self.id = "embd-" + uuid.uuid4().hex
        self._job = job
        self._model = model
        self._vectors: dict[int, bytes] = {}
        self._cached = 0

    def add(self, output: RequestOutput) -> None:
        """Collect an output. Raises RowFailed, StepOutOfMemory or EngineUnavailable where it has failed."""
        (delta,) = output.deltas
        delta.check()
        if output.embedding is not None:
            self._vectors[delta.index] = output.embedding
        self._cached += output.cached_tokens

    def body(self) -> bytes:
        """The body of the whole response, as JSON."""
        tokens = self._job.prompt_tokens
        # One by one, since the encoder lets nothing else run.
        data = [
            msgspec.Raw(msgspec.json.encode({"object": "embedding", "index": index, "embedding": self._written(index)}))
            for index in range(len(self._job.prompts))
        ]
        usage = {
            "prompt_tokens": tokens,
            "total_tokens": tokens,
            "prompt_tokens_details": {"cached_tokens": self._cached},
        }
        return msgspec.json.encode({"object": "list", "data": data, "model": self._model, "usage": usage})

    def _written(self, index: int) -> Any:
        vector, form = self._vectors[index], self._job.form
        assert form is not None, "the job asks for vectors"
        if self._job.pooling == "tokens":
            count = pooled_tokens(len(self._job.prompts[index]), self._job.pooled_from)
            places = self._job.late[index].places if self._job.late else range(count)
            size = len(vector) // count
            return [form.of(vector[place * size : (place + 1) * size]).tolist() for place in places]
        values = form.of(vector)
        if self._job.encoding_format == "float":
            return values.tolist()
        if sys.byteorder == "big":
            values.byteswap()
        return base64.b64encode(values.tobytes()).decode()
