"""Responses of `/translate`: one text, or a list of them."""

import uuid

import msgspec

from penstock.api.job import Job
from penstock.api.translation.schema import ERRORS, Translation
from penstock.engine.interface import RequestOutput
from penstock.http.error_bodies import ErrorForm


class TranslationWriter:
    """Collects the texts of a job and writes the response; those of prompt p have the sample indices from p·n on.

    Attributes:
        id: the request's id, in the log only.
        errors: how an error is written.
        completion_tokens: of all texts so far.
        cut, enough: nothing is complete before the engine says so.
    """

    errors: ErrorForm = ERRORS
    cut = 0
    enough = False

    def __init__(self, job: Job, *, listed: bool) -> None:
        """`listed`: whether the texts came as a list."""
        self.id = "tr-" + uuid.uuid4().hex
        self.completion_tokens = 0
        self._listed = listed
        self._samples = job.params[0].n
        self._texts = [""] * (len(job.prompts) * self._samples)

    def add(self, output: RequestOutput) -> None:
        """Collect an output. Raises RowFailed, StepOutOfMemory or EngineUnavailable where it has failed."""
        for delta in output.deltas:
            delta.check()
            self._texts[delta.index] += delta.text
            self.completion_tokens += len(delta.token_ids)

    def body(self) -> bytes:
        """The body of the whole response, as JSON."""
        texts, size = [text.strip() for text in self._texts], self._samples
        best = texts[::size]
        others = [texts[first + 1 : first + size] for first in range(0, len(texts), size)]
        found = Translation(best if self._listed else best[0])
        if size > 1:
            found.alternatives = [*others] if self._listed else [*others[0]]
        return msgspec.json.encode(found)
