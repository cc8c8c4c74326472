"""Decides which replica gets a request, and learns from what becomes of it there."""

import asyncio
import logging
import random
import time
from collections.abc import Mapping, Sequence
from math import inf
from typing import NamedTuple

from penstock import __version__
from penstock.access.allowances import Allowances, OwnAllowances
from penstock.access.tenants import Permits, Tenant
from penstock.core.errors import ModelNotFound
from penstock.core.kv_places import KVPlaces
from penstock.core.request import BACKGROUND_PRIORITY
from penstock.gateway.abroad import Abroad, may_have, way_out
from penstock.gateway.answer_cache import AnswerCache
from penstock.gateway.answers import Answers
from penstock.gateway.asked import TOKEN_BYTES, Asked, text_keys, text_root
from penstock.gateway.attempt import Attempt
from penstock.gateway.caches import Caches, Naming, Prompt, PromptKeys
from penstock.gateway.demand import Demands
from penstock.gateway.errors import NoReplica
from penstock.gateway.figures import Behind, Figures, FleetFigures, ReplicaFigures, text_of
from penstock.gateway.guardrails import Guardrails
from penstock.gateway.handing import Handing
from penstock.gateway.hold import Hold
from penstock.gateway.hosted import Hosted
from penstock.gateway.kept import Kept, away
from penstock.gateway.likeness import Likeness
from penstock.gateway.limits import Limits
from penstock.gateway.options import FleetOptions, KVOptions
from penstock.gateway.pool import Sender
from penstock.gateway.replicas import Replica, Replicas, State
from penstock.gateway.trials import Shadows, Splits
from penstock.gateway.under_way import UnderWay
from penstock.gateway.ways import Ways
from penstock.metering.prices import Prices
from penstock.observability.definitions import TRACES
from penstock.observability.tracing import Tracing
from penstock.routing.hedging import Hedging
from penstock.routing.holdings import Holdings
from penstock.routing.line import Turn
from penstock.routing.outliers import Outliers
from penstock.routing.policies import policy_of
from penstock.routing.retries import RetryBudget
from penstock.routing.router import Router
from penstock.routing.speed import GUESSED
from penstock.routing.told import ReplicaState
from penstock.server.prompts import PromptReader
from penstock.tenancy.entries import Ledger

logger = logging.getLogger("penstock.gateway")

# Keys of blocks that are remembered, each in about 100 bytes.
MOST_KEYS = 1_000_000
# Until it is known that a replica has gone whose connection broke.
_NEWS_SECONDS = 0.2


class Wanted(NamedTuple):
    """What a request asks for.

    Attributes:
        tokens: of its prompt, as far as they are known.
        keys: names of the blocks of its prompt.
        session: what it has in common with others of its conversation or user.
        turn: its place among others.
        seconds: that it has in all; None: any number.
        stream: whether its answer is to come as it is generated.
        keepers: the only replicas that can answer, since they keep what the request goes on from; empty: any can.
        abroad: how it can go out to providers; None where it stays on own machines.
        hands_over: whether its prompt may be computed by another replica than its answer.
    """

    model: str | None
    tokens: int
    keys: PromptKeys = PromptKeys()
    session: str | None = None
    turn: Turn = Turn(0, 1)
    seconds: float | None = None
    stream: bool = False
    keepers: Sequence[Replica] = ()
    abroad: Abroad | None = None
    hands_over: bool = False


class Dispatch:
    """All replicas, and what was sent to each.

    Args:
        readers: of prompts, by the models that they are of.
        keyed: whether the gateway has keys of its own, and clients' keys go no further.
        tracing: what sends traces; None where none are wanted.
        allowances: where it is kept what tenants may use; in memory where nothing else is given.
        ledger: where it is entered what each request has used; nowhere without it.
        answers: where answers are kept for tenants that let them be; in memory where nothing else is given.
        first: the number of its first request, by which it draws; None: any, so that gateways draw differently.

    Attributes:
        caches: what is known of them.
        kept, demands: which of them keeps what; what comes for each model.
        replicas, router, outliers, hold, hedging, handing: what it decides by.
        figures: what it counts.
        ways: what became of the last requests.
        rules, splits: by which requests get other models than they name.
        shadows: which models get copies of requests.
        limits: what tenants may use.
        answers, guardrails: those that it has given; who looks at requests and at answers.
        under_way: the requests of keys, which end where a key is revoked.
        named: readers of prompts, by their models.
    """

    def __init__(
        self,
        fleet: FleetOptions,
        readers: Mapping[str, PromptReader] | None = None,
        *,
        keyed: bool = False,
        tracing: Tracing | None = None,
        allowances: Allowances | None = None,
        ledger: Ledger | None = None,
        answers: Answers | None = None,
        first: int | None = None,
    ) -> None:
        prices = Prices(fleet.price, fleet.free)
        self.limits = Limits(allowances or OwnAllowances(), prices, counts_all=ledger is not None)
        self.ledger, self.under_way = ledger, UnderWay()
        self.answers = AnswerCache(fleet.answer_cache, answers)
        self.named = readers or {}
        self.keyed, self.tracing = keyed, tracing
        self.rules, self.splits, self.shadows = fleet.rule, Splits(fleet.split), Shadows(fleet.shadow)
        self._readers = {reader.identity: reader for reader in self.named.values()}
        self._most, self._takes_unlike = 1 + fleet.retries.most, fleet.retries.unlike
        self.replicas = Replicas(fleet.expect)
        self._likeness = Likeness(self.replicas)
        self._ahead = fleet.hold.ahead
        self._arrived = 0
        self._limits: list[float] = []
        self._holdings = Holdings(MOST_KEYS)
        first = random.getrandbits(32) if first is None else first
        self.router = Router(policy_of(fleet.policy), [], [], self._holdings, first)
        loads, output = self.router.loads, lambda: round(self.router.output)
        self.hold = Hold(self.replicas, loads, fleet.hold, output, queue=self.router.queue)
        self.outliers, self.demands = Outliers(0), Demands(self.replicas, loads, self.router.speeds)
        unlike = self._takes_unlike
        self.handing = Handing(fleet.handover, self.replicas, self.router, self.outliers, takes_unlike=unlike)
        self._budget = RetryBudget(part=fleet.retries.part)
        self.hedging = Hedging(fleet.hedge.part)
        self.caches = Caches(self._holdings, keyed=keyed)
        self.kept = Kept(self.replicas, keyed=keyed)
        self.figures = Figures()
        self.guardrails = Guardrails(fleet.guardrail, self.figures)
        self.ways = Ways()
        self._policy, self.timeouts = fleet.policy, fleet.timeouts

    def add(
        self,
        sender: Sender,
        key: str | None,
        most: int | None = None,
        handicap: float = 0.0,
        hosted: Hosted | None = None,
    ) -> Replica:
        """There is one more replica, which is to have at most `most` requests at a time."""
        free = self._free_place()
        replica = self.replicas.add(sender, key, free, hosted)
        if free is None:
            self.router.add(replica.name, GUESSED, handicap)
            self.outliers.add()
            self.caches.add(replica)
            self._limits.append(inf)
        else:
            self.router.replace(free, replica.name, GUESSED, handicap)
        self._limits[replica.place] = self.router.loads.most[replica.place] = inf if most is None else most
        return replica

    def _free_place(self) -> int | None:
        """That of a replica that is gone and has nothing under way."""
        gone = (each for each in self.replicas.all if each.state == State.GONE and not each.under_way)
        return next((each.place for each in gone if not self.router.loads.requests[each.place]), None)

    def gone(self, replica: Replica) -> None:
        """A replica is there no longer; what is under way there is not over yet."""
        place = replica.place
        self.caches.forget(place)
        self.outliers.forget(place)
        self.figures.forget(place)
        # What others have sent it does not count any more.
        self.router.loads.told(place, 0, 0, 0)
        self._likeness.forget(place)

    def told(self, replica: Replica, state: ReplicaState) -> None:
        """A replica says how it is."""
        self.router.loads.told(replica.place, state.running + state.waiting, state.waiting, state.waiting_tokens)
        if state.speed is not None:
            self.router.measured(replica.place, state.speed)
        self.caches.told(replica, state)
        self._likeness.told(replica, state)
        if state.most_running:
            # Where some wait although there are rows, it has no room for more.
            full = (state.running if state.waiting else state.most_running) + self._ahead
            self.router.loads.most[replica.place] = min(full, self._limits[replica.place])
        self.hold.look()

    @property
    def models(self) -> list[str]:
        """That can be asked for: those of replicas, those that are expected, and those that rules lead to them."""
        there = dict.fromkeys((*self.replicas.models, *self.replicas.expected))
        led = (rule.model for rule in self.rules if rule.to in there)
        return list(dict.fromkeys((*there, *led)))

    @property
    def only_model(self) -> str:
        """Which model is meant where none is named; empty where that is not known."""
        machines = self.replicas.machines
        there = dict.fromkeys(model for each in machines for model in each.models)
        if not there and not machines:
            there = dict.fromkeys(self.replicas.models)
        return next(iter(there)) if len(there) == 1 else ""

    def follow(self, replica: Replica, kv: KVOptions | None) -> None:
        """Read the events of a replica that does not say itself where they are."""
        if kv is not None:
            places = KVPlaces(kv.events, kv.replay, kv.block_size)
            naming = Naming(self.named[kv.prompts].identity, kv.block_size, places.tenant)
            self.caches.follow(replica, places, naming)

    async def read(self, asked: Asked, path: str, body: bytes, session: str | None, tenant: Tenant) -> Wanted:
        """What a request asks for, as exactly as that is known here."""
        text = text_keys(asked.beginning, text_root(asked.model or ""))
        prompt = await self._prompt(asked.model, path, body, tenant.name) if self._readers else None
        tokens = asked.tokens if prompt is None else len(prompt.tokens)
        self._arrived += 1
        turn = Turn(self._arrived, tokens, asked.model, tenant.name, tenant.weight, asked.rank)
        keys = self.caches.keys(text, prompt)
        session = session or asked.session
        return Wanted(asked.model, tokens, keys, session, turn, asked.timeout, stream=bool(asked.stream))

    def models_for(self, permits: Permits) -> list[str]:
        """Those that can be asked for now by who may be seen by some providers only."""
        return [each for each in self.replicas.models if may_have(self.replicas, each, permits)]

    def way_out(self, asked: Asked, path: str, body: bytes, tenant: Tenant) -> Abroad | None:
        """How a request can go out to providers; None where it stays. Raises RequestError where it can do neither."""
        return way_out(self.replicas, asked.model or self.only_model, path, body, tenant.permits)

    def own(self, model: str, size: int, tenant: Tenant, rank: int) -> Wanted:
        """What the gateway asks itself, in a body of that size, for a tenant's request that waits for it."""
        self._arrived += 1
        tokens = max(1, size // TOKEN_BYTES)
        return Wanted(model, tokens, turn=Turn(self._arrived, tokens, model, tenant.name, tenant.weight, rank))

    async def _prompt(self, model: str | None, path: str, body: bytes, tenant: str) -> Prompt | None:
        for replica in self.replicas.machines:
            reader = self._readers.get(self.caches.reads(replica.place) or "")
            if reader is not None and (model is None or model in replica.models):
                read = await reader.read(path, body, replica.models)
                return None if read is None else Prompt(reader.identity, *read, tenant)
        return None

    def fleet(self) -> FleetFigures:
        """All replicas as they are now."""
        return FleetFigures(
            version=__version__,
            at=time.time(),
            policy=self._policy,
            index_blocks=len(self._holdings),
            held=self.hold.waiting,
            requests=dict(self.figures.requests),
            retries=dict(self.figures.retries),
            replicas=[self._of(replica) for replica in self.replicas.there],
        )

    def text(self, *, tenants: bool = False) -> bytes:
        """The same in Prometheus' text format; `tenants`: with what each of them uses, which no other one is to see."""
        index = len(self._holdings), self._holdings.forgotten
        traces = dict.fromkeys(TRACES, 0) if self.tracing is None else self.tracing.outcomes
        behind = Behind(self.limits.allowances.apart is not None, self.ledger, self.answers)
        demands = self.demands.told(self.hold.turns)
        return text_of(self.fleet(), self.figures, demands, index, traces, behind, tenants=tenants)

    def _of(self, replica: Replica) -> ReplicaFigures:
        place, figures, told = replica.place, self.figures, replica.told
        tokens, most = figures.prompt_tokens[place], self.router.loads.most[replica.place]
        return ReplicaFigures(
            place=place,
            url=replica.name,
            state=replica.state,
            why=replica.why,
            left_out=self.outliers.why(place, _now()),
            models=replica.models,
            requests=self.router.loads.requests[place],
            most=None if most == inf else round(most),
            running=None if told is None else told.running,
            waiting=None if told is None else told.waiting,
            blocks_used=None if told is None else told.blocks_used,
            blocks_total=None if told is None else told.blocks_total,
            sent=figures.sent[place],
            failures=figures.failures[place],
            hit_rate=figures.hit_tokens[place] / tokens if tokens else None,
            cache=self.caches.exactness(place).value,
            unlike=self._likeness.unlike(place, replica.models),
        )

    async def first(self, wanted: Wanted) -> Attempt:
        """Send a request at its turn; it is to `end`. Raises ModelNotFound, NoReplica, QueueFull, SloUnreachable."""
        abroad = None if wanted.abroad is None else lambda seconds: self._abroad(wanted, seconds)
        self.demands.came(wanted.model, wanted.tokens)
        attempt = await self.hold.turn(wanted.turn, wanted.seconds, lambda places: self.send(wanted, places), abroad)
        self.demands.sent(wanted.model, wanted.tokens, attempt.choice.hit)
        self._budget.request(_now())
        if wanted.stream:
            self.hedging.sent()
        return attempt

    def hedge(self, wanted: Wanted, tried: Sequence[int]) -> Attempt | None:
        """Send a request to one replica more, whose answer has not begun; None where that is not to be."""
        places = [place for place in self.ready(wanted, tried) if self.router.loads.has_room(place)]
        if not places or not self.hedging.take():
            return None
        self.figures.retries["hedged"] += 1
        return self.send(wanted, places)

    def end(self, wanted: Wanted, output: int | None) -> None:
        """A request that had its turn is over, with `output` tokens of an answer; None: nothing says how many."""
        self.hold.end(wanted.turn, output)
        self.hold.look()

    def can_go_on(self, wanted: Wanted, broken: Replica, failed: Sequence[int]) -> list[int]:
        """Places of the replicas that can go on with what another has begun: they give the same bits, or need not.

        Those that `failed` since there was more of the answer are not asked.
        """
        return [] if broken.told is None else self._alike(wanted, broken.told.identity, failed)

    def _alike(self, wanted: Wanted, identity: str, failed: Sequence[int]) -> list[int]:
        def goes_on(told: ReplicaState | None) -> bool:
            return told is not None and (self._takes_unlike or (told.identity == identity != ""))

        return [place for place in self.ready(wanted, failed) if goes_on(self.replicas.all[place].told)]

    async def go_on(self, wanted: Wanted, broken: Replica, failed: Sequence[int]) -> Attempt | None:
        """Send a request to a replica that can go on with what another has begun.

        None where there is none, and none comes for as long as requests wait.
        """
        before = broken.told
        if before is None or not (before.identity or self._takes_unlike):
            return None

        def alike() -> list[int]:
            # When it has begun anew, the one that broke is as good as another.
            again = broken.told is not None and broken.told.instance != before.instance
            return self._alike(wanted, before.identity, [each for each in failed if each != broken.place or not again])

        places = await self.hold.until(alike)
        if not places:
            return None
        self.figures.retries["resumed"] += 1
        attempt = self.send(wanted, places)
        logger.info("%s goes on with a stream of %s", attempt.replica.name, broken.name)
        return attempt

    async def handed(self, wanted: Wanted, replica: Replica, *, begun: bool, brought: bool) -> Attempt | None:
        """Send a request on that a replica computes no further; None where no other can go on, and none comes in time.

        `begun`: its stream has begun, so that bits must be alike; `brought`: its prompt was computed, and is offered.
        """
        places = await self.hold.until(lambda: self.can_go_on(wanted, replica, []) if begun else self.ready(wanted, []))
        if not places:
            return None
        self.figures.handed_over += brought
        return self.send(wanted, places, brought=brought)

    def may_begin_again(self, wanted: Wanted, tried: Sequence[int]) -> bool:
        """Whether a request that was not answered can be sent to another replica now, for which there is a budget.

        Where it may, `again` is told that it was granted.
        """
        others = self.ready(wanted, tried) or self._abroad(wanted, inf, tried)
        return len(tried) < self._most and bool(others) and self._budget.retry(_now())

    async def again(
        self, wanted: Wanted, tried: Sequence[int], broke: Attempt | None = None, *, granted: bool = False
    ) -> Attempt | None:
        """Send a request elsewhere that replicas did not begin to answer; None where that is not to be.

        `broke` is the last attempt, where its replica did not answer. That this has gone may be seen only a moment
        later. Where all have been tried, others are asked once more: they may have begun anew, or be busy no longer.
        """
        if len(tried) >= self._most:
            return None
        candidates = self.ready(wanted, tried) or self._abroad(wanted, inf, tried)
        if not candidates and broke is not None and (wanted.abroad is None or not wanted.abroad.only):
            await asyncio.sleep(_NEWS_SECONDS)
            still = [] if broke.has_begun_anew else [broke.replica.place]
            candidates = self.ready(wanted, tried) or self.ready(wanted, still) or await self._come_back(wanted)
        if not candidates:
            return None
        if not granted and not self._budget.retry(_now()):
            self.figures.retries["over_budget"] += 1
            return None
        self.figures.retries["sent"] += 1
        return self.send(wanted, candidates)

    def ready(self, wanted: Wanted, without: Sequence[int]) -> list[int]:
        """Places of replicas that can answer, without some."""
        try:
            ready = self.replicas.candidates(wanted.model)
            keepers, there = wanted.keepers, self.replicas.all
            return [each for each in ready if each not in without and (not keepers or there[each] in keepers)]
        except (ModelNotFound, NoReplica):
            return []

    async def back(self, wanted: Wanted, tried: Sequence[int]) -> Attempt | None:
        """Send a request elsewhere that a provider did not take: to the next provider, or to a machine in its turn.

        None where only providers can answer, and all have been asked. Raises as `first` does.
        """
        self.hold.end(wanted.turn, 0)
        if wanted.abroad is not None and wanted.abroad.only and not self._abroad(wanted, inf, tried):
            return None
        self.figures.retries["sent"] += 1
        send, abroad = (lambda places: self.send(wanted, places)), (lambda _: self._abroad(wanted, inf, tried))
        return await self.hold.turn(wanted.turn, wanted.seconds, send, abroad)

    def _abroad(self, wanted: Wanted, seconds: float, without: Sequence[int] = ()) -> list[int]:
        """The place of the first provider that takes a request which would wait for so long; none where none does."""
        if wanted.abroad is None:
            return []
        able = [place for place in wanted.abroad.places if place not in without and self._takes(place, seconds)]
        good = [place for place in able if self.outliers.why(place, _now()) is None]
        # Where no other one can answer, one that has failed is tried again.
        return (good or (able if wanted.abroad.only else []))[:1]

    def _takes(self, place: int, seconds: float) -> bool:
        """Whether a provider takes what would wait for so long."""
        hosted = self.replicas.all[place].hosted
        assert hosted is not None, "those who go out go to providers"
        return hosted.options.after <= seconds and not hosted.rests(_now()) and self.router.loads.has_room(place)

    async def _come_back(self, wanted: Wanted) -> list[int]:
        """Places of replicas that have begun anew, where there was none for a while."""
        if self.ready(wanted, ()):
            return []
        return await self.hold.until(lambda: self.ready(wanted, ()))

    def send(self, wanted: Wanted, candidates: Sequence[int], *, brought: bool = False) -> Attempt:
        now = _now()
        if wanted.keepers:
            # Whether others have room or not; their places may be others' by now.
            keeping = self.ready(wanted, ())
            candidates = [each for each in candidates if each in keeping] or keeping
            if not candidates:
                raise away(wanted.keepers[0])
        allowed = self.outliers.allowed(candidates, now)
        if wanted.turn.priority >= BACKGROUND_PRIORITY:
            # Lines of batches go to the replicas with least to do.
            fewest = min(self.router.loads.requests[each] for each in allowed)
            allowed = [each for each in allowed if self.router.loads.requests[each] == fewest]
        choice, sent = self.router.send(wanted.tokens, wanted.keys.all, wanted.session, allowed, brought=brought)
        decodes = choice.replica
        if wanted.hands_over and not wanted.keepers:
            choice = self.handing.of_prompt(choice, wanted.model, wanted.tokens, wanted.keys.all, now)
        if choice.replica != decodes:
            self.router.over(sent, 0)
            sent = self.router.sent_to(choice, wanted.tokens)
        if wanted.turn.priority >= BACKGROUND_PRIORITY:
            self.router.loads.in_background(sent)
        is_trial = self.outliers.tries(choice.replica, now)
        expected = self.caches.sent(choice.replica, wanted.keys)
        self.figures.sent[choice.replica] += 1
        self.figures.prompt_tokens[choice.replica] += wanted.tokens
        self.figures.hit_tokens[choice.replica] += choice.hit
        attempt = Attempt(self, self.replicas.all[choice.replica], choice, sent, expected, is_trial=is_trial)
        attempt.hands_over = choice.replica != decodes
        if len(allowed) < len(self.replicas.all):
            left = [each for each in self.replicas.there if each.place not in (*allowed, choice.replica)]
            attempt.told.others = {each.name: self._why_not(each, wanted) for each in left}
        return attempt

    def _why_not(self, replica: Replica, wanted: Wanted) -> str:
        """Why a request was not sent to a replica that was not chosen from."""
        if replica.why:
            return replica.why
        if wanted.model is not None and wanted.model not in replica.models:
            return "it does not have the model"
        if wanted.keepers and replica not in wanted.keepers:
            return "another one keeps what the request goes on from"
        if (left_out := self.outliers.why(replica.place, _now())) is not None:
            return left_out
        if replica.computes_prompts:
            return "it computes prompts for others"
        return "it has been asked already, or has as much as it takes on"


def _now() -> float:
    return asyncio.get_running_loop().time()
