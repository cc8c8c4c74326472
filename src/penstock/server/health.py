"""How the server is: whether this process answers, whether requests can be served, whether one really is."""

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from penstock.core.errors import EngineUnavailable, PenstockError
from penstock.core.request import Standing
from penstock.core.sampling import SamplingParams
from penstock.engine.interface import EngineClient
from penstock.http.answers import json_response
from penstock.server.answers import DeepHealth, Kept, Probe, Readiness
from penstock.server.served import why_not
from penstock.storage.condition import StorageCondition
from penstock.storage.errors import StorageFull

PROBE_TOKENS = 10
# An engine that is full lets a request of this priority in before all others.
_PROBE = Standing(priority=-(2**63), cache_salt="health")


class HealthApi:
    """The endpoints.

    Args:
        engines: of the models that are served, one at least.
        number_of: says which of these has a name, or raises ModelNotFound.
        storage: whether the disk works; None where nothing is kept.
        probe_seconds: the longest that a probe may take.
        fresh_seconds: how long the result of a probe counts, so that no client can load the engine by asking.
    """

    def __init__(
        self,
        engines: Sequence[EngineClient],
        storage: StorageCondition | None = None,
        number_of: Callable[[str], int] = lambda name: 0,
        probe_seconds: float = 10.0,
        fresh_seconds: float = 5.0,
    ) -> None:
        self._engines = engines
        self._storage = storage
        self._number_of = number_of
        self._probers = [_Prober(engine, probe_seconds, fresh_seconds) for engine in engines]

    def routes(self) -> list[Route]:
        """The routes of the health checks."""
        return [
            # Where load generators and load balancers look that were made for vLLM.
            Route("/health", self.ready, methods=["GET"]),
            Route("/health/live", self.live, methods=["GET"]),
            Route("/health/ready", self.ready, methods=["GET"]),
            Route("/health/deep", self.deep, methods=["GET"]),
        ]

    async def live(self, request: Request) -> Response:
        """`GET /health/live`: this process answers; whether the engine does is for `ready` to say."""
        return json_response({"status": "live"})

    async def ready(self, request: Request) -> Response:
        """`GET /health/ready` and `GET /health`: requests can be served now; else 503 with the cause.

        Of several models, one at least can be asked, and all could before: one that is started again does not take the
        others along. `?model=` asks for one. A disk that fails is told, and does not make the server unready: it
        generates.
        """
        name = request.query_params.get("model")
        asked = self._engines if name is None else [self._engines[self._number_of(name)]]
        whys = {engine.model.name: why_not(engine) for engine in asked} if len(asked) > 1 else {}
        if all(whys.values()):
            for engine in asked:
                engine.check_ready()
        models = {name: why or "ready" for name, why in whys.items()} or msgspec.UNSET
        if self._storage is None:
            return json_response(Readiness("ready", "off", models))
        failure = self._storage.failure
        full = isinstance(failure, StorageFull)
        kept: Kept = "working" if failure is None else "full" if full else "failing"
        return json_response(Readiness("ready", kept, models))

    async def deep(self, request: Request) -> Response:
        """`GET /health/deep`: the engines compute; else 503 with the cause. All who ask meanwhile get it.

        `?model=` asks for one of several.
        """
        name = request.query_params.get("model")
        asked = self._probers if name is None else [self._probers[self._number_of(name)]]
        found = [await prober.newest() for prober in asked]
        if len(found) == 1:
            return json_response(found[0])
        models = {prober.name: probe for prober, probe in zip(asked, found, strict=True)}
        return json_response(DeepHealth(**msgspec.structs.asdict(found[0]), models=models))


class _Prober:
    """Has an engine compute something, at most once in a time."""

    def __init__(self, engine: EngineClient, probe_seconds: float, fresh_seconds: float) -> None:
        self._engine = engine
        self._probe_seconds = probe_seconds
        self._fresh_seconds = fresh_seconds
        self._probing = asyncio.Lock()
        self._ended = -float("inf")
        self._found: Probe | PenstockError | None = None

    @property
    def name(self) -> str:
        """Of the model."""
        return self._engine.model.name

    async def newest(self) -> Probe:
        """What came of the newest probe. Raises PenstockError where it has failed."""
        async with self._probing:
            if time.monotonic() - self._ended > self._fresh_seconds:
                self._found = await self._probe()
                self._ended = time.monotonic()
        if isinstance(self._found, PenstockError):
            raise self._found
        assert self._found is not None, "it was looked for above"
        return msgspec.structs.replace(self._found, age=round(time.monotonic() - self._ended, 3))

    async def _probe(self) -> Probe | PenstockError:
        began = time.monotonic()
        tokens = 0
        try:
            self._engine.check_ready()
            model = self._engine.model
            # A model can say what comes after any id; 0 is always one.
            if model.generates:
                params = SamplingParams(temperature=0.0, max_tokens=PROBE_TOKENS, ignore_eos=True)
                outputs = self._engine.generate([0], params, standing=_PROBE)
            else:
                outputs = self._engine.embed([0], model.vectors.pooling, standing=_PROBE)
            async with asyncio.timeout(self._probe_seconds), contextlib.aclosing(outputs):
                async for output in outputs:
                    for delta in output.deltas:
                        delta.check()
                        tokens += len(delta.token_ids)
        except TimeoutError:
            return EngineUnavailable(
                f"The engine gave {tokens} of {PROBE_TOKENS} tokens within {self._probe_seconds:g} s; try again later."
            )
        except PenstockError as error:
            return error
        return Probe("generating" if model.generates else "encoding", tokens, round(time.monotonic() - began, 4), 0.0)
