"""Reads the prompts of requests as a replica of the same model does, for those who have no engine."""

from collections.abc import Callable, Sequence
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
from penstock.api.scoring.endpoints import job_endpoints as scoring
from penstock.core.errors import RequestError
from penstock.engine.interface import ModelInfo

_Resolve = Callable[[bytes], Job | None]
_MOST_NAMES = 64


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
        # By the names that the model is served under. A fleet has few.
        self._readers: dict[tuple[str, ...], dict[str, _Resolve]] = {}

    async def read(self, path: str, body: bytes, names: Sequence[str]) -> Prompt | None:
        """The prompt of a request to a model that is served under these names.

        None where it does not follow from the body alone, or the replica will say what is wrong.
        """
        resolve = self._reader(tuple(names)).get(path)
        if resolve is None:
            return None
        try:
            job = await self._reading.beside(len(body), resolve, body)
        except RequestError:
            return None
        return None if job is None or not job.prompts else Prompt(job.prompts[0], job.standing.cache_salt)

    def count(self, text: str) -> int:
        """The tokens of a text."""
        tokenizer = self._reading.tokenizer
        return 0 if tokenizer is None else len(tokenizer.encode(text))

    def _reader(self, names: tuple[str, ...]) -> dict[str, _Resolve]:
        """What reads a body, by its path."""
        if (found := self._readers.get(names)) is not None:
            return found
        model = self._model
        if names:
            model = replace(model, name=names[0], aliases=names[1:])
        found = {
            **{path: endpoint.resolve for path, endpoint in job_endpoints(self._reading, lambda: model).items()},
            **{path: endpoint.resolve for path, endpoint in scoring(self._reading, lambda: model).items()},
            "/v1/messages": MessagesReader(self._reading, lambda: model).resolve,
            "/v1/responses": lambda body: self._response(body, model),
        }
        if len(self._readers) == _MOST_NAMES:
            self._readers.clear()
        self._readers[names] = found
        return found

    def _response(self, body: bytes, model: ModelInfo) -> Job | None:
        reader = self._reading.reader()
        fields = parse_response(body, reader, ResponsesFields)
        if fields.previous_response_id is not None or referenced(fields.input):
            # Only the replica that has stored it knows what that was.
            return None
        return response_job(fields, list, reader, self._reading, model)[0]
