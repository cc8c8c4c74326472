"""Responses that are written once all vectors of a job are there: as they are, or as the scores that come of them."""

import uuid
from collections.abc import Callable
from typing import NamedTuple

from penstock.api.job import Job
from penstock.engine.interface import RequestOutput
from penstock.http.error_bodies import PLAIN, ErrorForm


class Computed(NamedTuple):
    """What a response is made of.

    Attributes:
        id: the response's.
        vectors: of each prompt of the job, float32 in the machine's order of bytes.
        cached: how many tokens of prompts the prefix cache had.
    """

    id: str
    job: Job
    vectors: list[bytes]
    cached: int


class VectorWriter:
    """Collects the vectors of a job and writes the response; the output of prompt p has the sample index p.

    Attributes:
        id: the response's id, which some bodies have; else it is in the log only.
        completion_tokens, cut, enough: there are no tokens, so that nothing can be complete before the engine says so.
    """

    completion_tokens = 0
    cut = 0
    enough = False

    def __init__(self, job: Job, prefix: str, write: Callable[[Computed], bytes], errors: ErrorForm = PLAIN) -> None:
        """`prefix` begins the id; `write` makes the body of what was computed; `errors`: how an error is written."""
        self.errors = errors
        self.id = prefix + uuid.uuid4().hex
        self._job, self._write = job, write
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
        vectors = [self._vectors[index] for index in range(len(self._job.prompts))]
        return self._write(Computed(self.id, self._job, vectors, self._cached))
