"""Responses of `/v1/embeddings`: vectors, as numbers or in base64."""

import base64
import sys
from typing import Any

import msgspec

from penstock.api.job import Job
from penstock.api.vector_writer import Computed
from penstock.core.vectors import pooled_tokens, vectors_at


def write_embeddings(computed: Computed, model: str) -> bytes:
    """The body of a response, as JSON."""
    job, tokens = computed.job, computed.job.prompt_tokens
    # One by one, since the encoder lets nothing else run.
    data = [
        msgspec.Raw(
            msgspec.json.encode({"object": "embedding", "index": index, "embedding": _written(job, index, vector)})
        )
        for index, vector in enumerate(computed.vectors)
    ]
    usage = {
        "prompt_tokens": tokens,
        "total_tokens": tokens,
        "prompt_tokens_details": {"cached_tokens": computed.cached},
    }
    return msgspec.json.encode({"object": "list", "data": data, "model": model, "usage": usage})


def _written(job: Job, index: int, vector: bytes) -> Any:
    form = job.form
    assert form is not None, "the job asks for vectors"
    if job.pooling == "tokens":
        count = pooled_tokens(len(job.prompts[index]), job.pooled_from)
        places = job.late[index].places if job.late else range(count)
        return [form.of(each).tolist() for each in vectors_at(places, vector, count)]
    values = form.of(vector)
    if job.encoding_format == "float":
        return values.tolist()
    if sys.byteorder == "big":
        values.byteswap()
    return base64.b64encode(values.tobytes()).decode()
