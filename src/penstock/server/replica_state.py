"""What this replica tells of itself: once, or to gateways many times a second, on a connection that stays open."""

import asyncio
import hashlib
import time
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import get_args

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from penstock.access.tenants import EVERYBODY, Tenant, tenant_of
from penstock.api.made_for import Task, detour, made_for
from penstock.core.errors import EngineUnavailable
from penstock.core.facts import StepFacts
from penstock.core.handover import Role
from penstock.core.kv_places import KVPlaces
from penstock.engine.interface import EngineClient
from penstock.http.answers import json_response
from penstock.http.drain import is_ending
from penstock.routing.speed import SpeedMeter
from penstock.routing.told import MadeFor, ModelBeside, ReplicaState
from penstock.server.served import info_of, names_of, why_not

# Between two looks at the state, and the longest for which it is not told because it is as before.
LOOK_SECONDS = 0.1
QUIET_SECONDS = 0.5
_LINES = "application/x-ndjson"


@dataclass(frozen=True)
class Telling:
    """What is told beside what the engine says.

    Attributes:
        texts: other servers with the same make the same prompts of requests, and the same answers of tokens.
        prompts: those with the same make the same prompts.
        most_running: sequences that are computed at a time; 0: unknown.
        store: others with the same keep the same files, batches and responses.
        role: whether it computes prompts and outputs, or one of them.
        kv_places: says where the events of the prefix cache are told.
    """

    texts: str = ""
    prompts: str = ""
    most_running: int = 0
    store: str = ""
    role: Role = "both"
    kv_places: Callable[[], KVPlaces | None] = lambda: None


class ReplicaStateApi:
    """The endpoint of `/v1/replica`, over the engines of a server."""

    def __init__(self, engines: Sequence[EngineClient], telling: Telling) -> None:
        self._engines, self._telling = engines, telling
        self._instance = uuid.uuid4().hex
        self._meter = SpeedMeter()
        engines[0].observe(self._step)

    def routes(self) -> list[Route]:
        """The route of `/v1/replica`."""
        return [Route("/v1/replica", self.states, methods=["GET"])]

    async def states(self, request: Request) -> Response:
        """`GET /v1/replica`: the state as JSON.

        Where lines are asked for (`Accept: application/x-ndjson`), each new state is one, until the server takes on
        nothing more.
        """
        if _LINES in request.headers.get("accept", ""):
            return StreamingResponse(self._lines(request), media_type=_LINES)
        return json_response(self.state(tenant_of(request), ending=is_ending(request.scope)))

    def state(self, tenant: Tenant = EVERYBODY, *, ending: bool) -> ReplicaState:
        """What there is to tell a tenant of the replica now; `ending`: it takes on nothing more."""
        whys = [why_not(engine) for engine in self._engines]
        loads = [engine.load for engine in self._engines]
        return ReplicaState(
            at=time.monotonic(),
            instance=self._instance,
            # What can answer with one of its models is there.
            why=whys[0] if all(whys) else "",
            ending=ending,
            models=tuple(name for engine in self._engines for name in names_of(engine)),
            max_model_len=_longest(self._engines[0]),
            running=sum(load.running for load in loads),
            most_running=self._telling.most_running,
            waiting=sum(load.waiting for load in loads),
            waiting_tokens=sum(load.waiting_tokens for load in loads),
            blocks_total=sum(load.blocks_total for load in loads),
            blocks_used=sum(load.blocks_used for load in loads),
            speed=self._meter.speed or (self._meter.of_prompts if self._telling.role == "prefill" else None),
            identity=self._identity(),
            form=self._form(),
            reads=self._telling.prompts,
            kv=self._kv(tenant.name),
            store=self._telling.store,
            role=self._telling.role,
            for_others=tenant.for_others,
            beside=self._beside(),
            made_for=self._made_for(),
        )

    def _kv(self, tenant: str) -> KVPlaces | None:
        places = self._telling.kv_places()
        return None if places is None else msgspec.structs.replace(places, tenant=tenant)

    def _beside(self) -> tuple[ModelBeside, ...]:
        others = [(names_of(engine), _longest(engine)) for engine in self._engines[1:]]
        return tuple(ModelBeside(names, longest) for names, longest in others if names)

    def _made_for(self) -> dict[str, MadeFor]:
        infos, found = [info_of(engine) for engine in self._engines], {}
        for task in get_args(Task):
            number = made_for(task, infos)
            info = None if number is None else infos[number]
            if info is not None:
                found[task] = MadeFor(info.name, detour(info, task))
        return found

    def _identity(self) -> str:
        """The same where all models give the same bits, if their weights are the same."""
        parts = []
        for engine in self._engines:
            try:
                model = engine.model
            except EngineUnavailable:
                return ""
            if not model.identity:
                return ""
            parts.append(f"{model.identity} {model.max_model_len}")
        return hashlib.sha256(f"{' '.join(parts)} {self._telling.texts}".encode()).hexdigest()

    def _form(self) -> str:
        """The same where blocks can be handed over; with a role, it serves one model."""
        try:
            return self._engines[0].model.form
        except EngineUnavailable:
            return ""

    async def _lines(self, request: Request) -> AsyncIterator[bytes]:
        told, tenant = None, tenant_of(request)
        while not (told and told.ending):
            state = self.state(tenant, ending=is_ending(request.scope))
            if told is None or _is_news(told, state):
                told = state
                yield msgspec.json.encode(state) + b"\n"
            await asyncio.sleep(LOOK_SECONDS)

    def _step(self, step: StepFacts) -> None:
        self._meter.step(step.decodes, step.chunk_tokens, step.seconds)


def _longest(engine: EngineClient) -> int:
    try:
        return engine.model.max_model_len
    except EngineUnavailable:
        return 0


def _is_news(told: ReplicaState, state: ReplicaState) -> bool:
    """Whether a state is to be told after the one that was told last."""
    return state.at - told.at > QUIET_SECONDS or state != msgspec.structs.replace(told, at=state.at)
