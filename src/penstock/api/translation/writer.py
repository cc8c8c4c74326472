"""Responses of `/translate`: one text, or a list of them."""

import uuid

import msgspec

from penstock.api.job import Job
from penstock.api.translation.schema import ERRORS, Translation
from penstock.engine.interface import RequestOutput
from penstock.http.error_bodies import ErrorForm


class TranslationWriter:
    """Collects the texts of a job and writes the response; that of prompt p has the sample index p.

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
        self._texts = [""] * len(job.prompts)

    def add(self, output: RequestOutput) -> None:
        """Collect an output. Raises RowFailed, StepOutOfMemory or EngineUnavailable where it has failed."""
        for delta in output.deltas:
            delta.check()
            self._texts[delta.index] += delta.text
            self.completion_tokens += len(delta.token_ids)

    def body(self) -> bytes:
        """The body of the whole response, as JSON."""
        texts = [text.strip() for text in self._texts]
        return msgspec.json.encode(Translation(texts if self._listed else texts[0]))
