"""What stands between requests and the engine: admission with its clock, for one server."""

import asyncio

from penstock.engine.interface import EngineClient, RequestOutput
from penstock.server.admission import Admission, Demand, Ticket
from penstock.server.resolve import Job

# A body without these words asks for no priority. One that writes them otherwise, as JSON can, is taken for such.
_PRIORITY_WORDS = (b'"priority"', b'"service_tier"')


class Pass:
    """An admitted job, to be told of what comes of it."""

    def __init__(self, gate: "Gate", ticket: Ticket) -> None:
        self._gate = gate
        self._ticket = ticket

    def gained(self, output: RequestOutput) -> None:
        """An output of the job has come."""
        gate = self._gate
        load, now = gate.engine.load, _now()
        for delta in output.deltas:
            ended = delta.finish_reason is not None
            gate.admission.gained(self._ticket, delta.index, len(delta.token_ids), load, now, ended=ended)

    def leave(self) -> None:
        """The engine has nothing more to do for it; may be said more than once."""
        self._gate.admission.leave(self._ticket, self._gate.engine.load, _now())


class Gate:
    """Admission to one engine."""

    def __init__(self, engine: EngineClient, admission: Admission) -> None:
        self.engine = engine
        self.admission = admission

    def check(self) -> None:
        """Raise Overloaded where whatever comes is refused: nothing of it has to be read."""
        self.admission.check(self.engine.load, _now())

    def check_body(self, body: bytes) -> bool:
        """The same for a body that was read; False where its priority has to be known first."""
        if any(word in body for word in _PRIORITY_WORDS):
            return False
        self.admission.shed(0, self.engine.load, _now())
        return True

    def admit(self, job: Job, *, checked: bool) -> Pass:
        """Take a job on, or raise Overloaded; `checked` is what `check_body` has said."""
        load, now, priority = self.engine.load, _now(), job.standing.priority
        if not checked:
            self.admission.shed(priority, load, now)
        demand = Demand(
            prompts=tuple(map(len, job.prompts)),
            samples=job.params[0].n if job.params else 1,
            max_tokens=[params.max_tokens for params in job.params] or [0] * len(job.prompts),
            priority=priority,
            tenant=job.standing.tenant,
        )
        return Pass(self, self.admission.admit(demand, load, now))


def _now() -> float:
    """Seconds on the event loop's clock, which all of the server goes by."""
    return asyncio.get_running_loop().time()
