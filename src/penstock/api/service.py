"""What the endpoints of all dialects share: the engine, and the way of a body to a running job."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response

from penstock.access.gate import Gate, UnparsedRequest
from penstock.access.tenants import tenant_of
from penstock.api.conversations import is_conversation, kept_as_conversation
from penstock.api.extras import may_have_priority
from penstock.api.generation import Deadline, GenerationResponse, Writer
from penstock.api.handover import handing_over
from penstock.api.job import Job
from penstock.api.reading import Reading
from penstock.api.records import Records, RequestRecord
from penstock.api.resumption import begun_of, classed, resumed, told, waited_of
from penstock.engine.interface import EngineClient
from penstock.http.arrival import ARRIVED
from penstock.http.body import BodyReader, refused_body
from penstock.http.error_bodies import Dialects, error_response
from penstock.http.errors import as_penstock_error
from penstock.http.request_ids import caller_of, client_id_of
from penstock.observability.account import PREPARED
from penstock.observability.metrics import Endpoint

# Makes a job of a body, and what makes the writer of its outputs.
Prepare = Callable[[bytes], Awaitable[tuple[Job, Callable[[Job], Writer]]]]


@dataclass(frozen=True)
class Entrance:
    """What a request passes before it is a job that runs.

    Attributes:
        bodies: what reads it.
        gate: takes it on.
        dialects: how refusals are written.
        request_timeout: seconds that any request has at most; None where it has the time that it asks for.
    """

    bodies: BodyReader
    gate: Gate
    dialects: Dialects
    request_timeout: float | None = None


class Service:
    """The parts of a served model, as its endpoints use them."""

    def __init__(self, engine: EngineClient, reading: Reading, entrance: Entrance, records: Records) -> None:
        self.engine = engine
        self.reading = reading
        self._entrance = entrance
        self._records = records

    def check(self) -> None:
        """Raise EngineUnavailable or Overloaded where no request would be taken on, whatever it is."""
        self.engine.check_ready()
        self._entrance.gate.check()

    async def read(self, request: Request) -> bytes:
        """A request's body. Raises EngineUnavailable before there is an engine, RequestError for what is no JSON."""
        # Before it is ready, an engine knows nothing of its model that a request could be checked against.
        self.engine.check_ready()
        return await self._entrance.bodies.read(request)

    async def generate(self, request: Request, endpoint: Endpoint, prepare: Prepare) -> Response | GenerationResponse:
        """The response to a request whose body `prepare` turns into a job, and into what writes its outputs."""
        tenant = tenant_of(request)
        arrival = request.scope.get("state", {}).get(ARRIVED)
        at = None if arrival is None else arrival()
        record = self._records.begin(endpoint, tenant.name, at, client_id_of(request))
        record.account.caller = caller_of(request)
        arrived = asyncio.get_running_loop().time()
        PREPARED.set(record.account.preparation)
        body = None
        try:
            # What is refused costs little: at best it is not even read, which the HTTP layer does, and forgets.
            self.check()
            body = await self.read(request)
            record.account.body(len(body))
            asked = UnparsedRequest(tenant.name, endpoint, body, may_have_priority(body))
            checked = self._entrance.gate.check_asked(asked)
            body, begun = begun_of(request, body)
            job, writing = await prepare(body)
            job = job.of_tenant(tenant) if begun is None else resumed(job.of_tenant(tenant), begun)
            job = handing_over(request, classed(request, told(request, job)), self.engine)
            if is_conversation(request):
                job = kept_as_conversation(job, self.engine.model)
            writer = writing(job)
            deadline = self._deadline(job, arrived - waited_of(request))
            admitted = self._entrance.gate.admit(asked, job.admission_request, checked=checked)
        except asyncio.CancelledError:
            record.end("cancelled", answered=False)
            raise
        except Exception as problem:
            return self._refused(problem, request, record, refused_body(request) if body is None else body)
        record.taken_on(job, writer.id)
        return GenerationResponse(self.engine, job, writer, admitted, record, deadline)

    def _refused(self, problem: Exception, request: Request, record: RequestRecord, body: bytes | None) -> Response:
        # An exception that a local variable of a frame in its own traceback refers to is garbage in a cycle, with all
        # that these frames know: a server that refuses much would be held up by looking for it.
        error = as_penstock_error(problem)
        form = self._entrance.dialects.at(request.scope["path"]).errors_of(body)
        record.refuse(error, form)
        return error_response(error, form)

    def _deadline(self, job: Job, arrived: float) -> Deadline | None:
        """The earlier one of what the client asks for and what the server allows."""
        most, asked = self._entrance.request_timeout, job.timeout
        seconds = min((value for value in (most, asked) if value is not None), default=None)
        return None if seconds is None else Deadline(arrived + seconds, seconds, seconds == asked)
