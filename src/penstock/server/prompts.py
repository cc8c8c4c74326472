"""Reads the prompts of requests as a replica of the same model does, for those who have no engine."""

from collections.abc import Sequence
from typing import NamedTuple

from msgspec.structs import replace

from penstock.api.anthropic.read import MessagesReader
from penstock.api.job import Job
from penstock.api.openai.endpoints import job_endpoints
from penstock.api.reading import Reading
from penstock.api.responses.parsing import parse_response
from penstock.api.responses.read import response_job
from penstock.api.responses.references import referenced
from penstock.api.responses.schema import ResponsesFields
from penstock.core.errors import RequestError
from penstock.engine.interface import ModelInfo


class Prompt(NamedTuple):
    """What a request's first prompt is.

    Attributes:
        tokens: its ids.
        salt: that its client sets it apart with.
    """

    tokens: list[int]
    salt: str


class PromptReader:
    """Reads bodies of one model's requests.

    Args:
        identity: readers with the same read the same tokens.
    """

    def __init__(self, reading: Reading, model: ModelInfo, identity: str) -> None:
        self.identity = identity
        self._reading, self._model = reading, model
        self._readers = {
            **{path: endpoint.resolve for path, endpoint in job_endpoints(reading, lambda: self._model).items()},
            "/v1/messages": MessagesReader(reading, lambda: self._model).resolve,
            "/v1/responses": self._response,
        }

    async def read(self, path: str, body: bytes, names: Sequence[str]) -> Prompt | None:
        """The prompt of a request to a model that is served under these names.

        None where it does not follow from the body alone, or the replica will say what is wrong.
        """
        if names and (self._model.name, *self._model.aliases) != tuple(names):
            self._model = replace(self._model, name=names[0], aliases=tuple(names[1:]))
        resolve = self._readers.get(path)
        if resolve is None:
            return None
        try:
            job = await self._reading.beside(len(body), resolve, body)
        except RequestError:
            return None
        return None if job is None or not job.prompts else Prompt(job.prompts[0], job.standing.cache_salt)

    def _response(self, body: bytes) -> Job | None:
        reader = self._reading.reader()
        fields = parse_response(body, reader, ResponsesFields)
        if fields.previous_response_id is not None or referenced(fields.input):
            # Only the replica that has stored it knows what that was.
            return None
        return response_job(fields, list, reader, self._reading, self._model)[0]
