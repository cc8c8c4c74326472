"""Which prompts a gateway hands over, by what replicas tell of themselves."""

import asyncio
import json
import time
from collections.abc import Callable, Iterator

import pytest

from gateway.conftest import Gateway, Start
from penstock.core.errors import ModelNotFound
from penstock.core.handover import HANDOVER, OFFER, Offer, offer_in, offer_in_comment
from penstock.gateway.exchange import Head
from penstock.gateway.handing import Handing, offer_of
from penstock.gateway.options import HandoverOptions, HoldOptions, Timeouts
from penstock.gateway.pool import Pool, address_of
from penstock.gateway.replicas import Replica, Replicas, State
from penstock.routing.ask import Choice
from penstock.routing.handover import TransferTimes
from penstock.routing.holdings import Holdings
from penstock.routing.outliers import Outliers, Rules
from penstock.routing.policies import policy_of
from penstock.routing.router import Router
from penstock.routing.speed import Speed
from penstock.routing.told import ReplicaState
from support.scripted_http import CLOSE, Received, Script, Step, answer, stream, whole_answer
from support.waiting import PATIENCE, until

PAYS = HandoverOptions(least_tokens=100)


class Fleet:
    """Replicas with roles; what each has to do is told in tokens and streams."""

    def __init__(self, *roles: str, options: HandoverOptions = PAYS) -> None:
        self.replicas = Replicas()
        speed = Speed(prefill=1000.0, decode=0.01)
        names = [f"http://127.0.0.1:{9000 + place}" for place in range(len(roles))]
        self.router = Router(policy_of("least-loaded"), names, [speed] * len(roles), Holdings(1000))
        for name, role in zip(names, roles, strict=True):
            self.tell(self.replicas.add(Pool(address_of(name))), role)
        self.outliers = Outliers(len(roles))
        self.handing = Handing(options, self.replicas, self.router, self.outliers)

    def tell(self, replica: Replica, role: str, identity: str = "alike", form: str = "of blocks") -> None:
        replica.told = ReplicaState(at=0.0, instance="i", identity=identity, form=form, role=role)  # type: ignore[arg-type]
        replica.is_ready(["m"])

    def streams(self, place: int, count: int) -> None:
        for _ in range(count):
            self.router.loads.answering(self.router.loads.sent(place, 10))

    def elsewhere(self, tokens: int = 2000, place: int = 0, hit: int = 0, model: str | None = "m") -> Choice | None:
        """Where a prompt is computed that was to be sent to a place; None: there."""
        sent = self.router.loads.sent(place, tokens, hit)
        found = self.handing.of_prompt(Choice(place, "it is its turn", hit), model, tokens, (), 0.0)
        self.router.loads.over(sent)
        self.reason = found.reason
        return None if found.replica == place else found


@pytest.fixture
def loop() -> Iterator[None]:
    """Replicas belong to an event loop."""
    with asyncio.Runner() as runner:
        runner.get_loop()
        yield


@pytest.mark.usefixtures("loop")
def test_prompts_go_where_they_are_computed_once_streams_would_wait() -> None:
    fleet = Fleet("decode", "prefill")
    assert fleet.elsewhere() is None
    fleet.streams(0, 2)
    found = fleet.elsewhere()
    assert found is not None and found.replica == 1
    assert (
        "handed over: computed where it is decoded, all would wait 6.00 s for it (2 streams beside it)" in found.reason
    )
    assert fleet.elsewhere(tokens=99) is None and fleet.elsewhere(hit=1950) is None
    assert fleet.reason.startswith("it is its turn; its prompt stays there: only 50 tokens of the prompt are to be")


@pytest.mark.usefixtures("loop")
def test_the_one_with_least_to_do_computes_it() -> None:
    fleet = Fleet("decode", "prefill", "prefill")
    fleet.streams(0, 2)
    fleet.router.loads.sent(1, 1000)
    found = fleet.elsewhere()
    assert found is not None and found.replica == 2
    # Neither has room, or both have more to do than it is worth.
    fleet.router.loads.sent(2, 50_000)
    fleet.router.loads.sent(1, 50_000)
    assert fleet.elsewhere() is None
    fleet = Fleet("decode", "prefill", options=HandoverOptions(when="always"))
    assert fleet.elsewhere() is not None and fleet.elsewhere(tokens=255) is None
    fleet.router.loads.most[1] = 0
    assert fleet.elsewhere() is None and "others have as many prompts as they take on" in fleet.reason


@pytest.mark.usefixtures("loop")
def test_only_alike_ones_compute_prompts_for_one_another() -> None:
    fleet = Fleet("decode", "prefill", options=HandoverOptions(when="always"))
    fleet.tell(fleet.replicas.all[1], "prefill", identity="of another release")
    assert fleet.elsewhere() is None
    fleet.tell(fleet.replicas.all[1], "prefill")
    fleet.replicas.all[1].is_not(State.UNREADY, "it is busy")
    assert fleet.elsewhere() is None
    # One without a role pulls nothing, whatever it has in common with those that compute prompts.
    for roles in (("both", "both"), ("both", "prefill")):
        fleet = Fleet(*roles, options=HandoverOptions(when="always"))
        assert fleet.elsewhere() is None and fleet.reason == "it is its turn"


@pytest.mark.usefixtures("loop")
def test_nothing_is_handed_over_that_could_not_go_on() -> None:
    fleet = Fleet("decode", "prefill", options=HandoverOptions(when="always"))
    assert fleet.elsewhere() is not None and fleet.elsewhere(model=None) is not None
    fleet.replicas.all[1].is_ready(["another"])
    assert fleet.elsewhere() is None and fleet.elsewhere(model=None) is None
    # No bits of theirs are the same again.
    for replica, role in zip(fleet.replicas.all, ("decode", "prefill"), strict=True):
        fleet.tell(replica, role, identity="")
    assert fleet.elsewhere() is None and fleet.reason == "it is its turn"
    always = HandoverOptions(when="always")
    fleet.handing = Handing(always, fleet.replicas, fleet.router, fleet.outliers, takes_unlike=True)
    assert fleet.elsewhere() is not None
    # Of other layouts, where that is allowed and blocks have the same form.
    fleet.tell(fleet.replicas.all[1], "prefill", identity="of two ranks")
    assert fleet.elsewhere() is not None
    fleet.tell(fleet.replicas.all[1], "prefill", identity="of two ranks", form="of other blocks")
    assert fleet.elsewhere() is None
    # They have not said yet what their blocks are.
    for replica, role in zip(fleet.replicas.all, ("decode", "prefill"), strict=True):
        fleet.tell(replica, role, form="")
    assert fleet.elsewhere() is None


@pytest.mark.usefixtures("loop")
def test_who_has_failed_computes_no_prompts_for_a_while() -> None:
    fleet = Fleet("decode", "prefill", options=HandoverOptions(when="always"))
    for _ in range(Rules().failures):
        assert fleet.elsewhere() is not None
        fleet.outliers.failed(1, 0.0)
    assert fleet.elsewhere() is None and fleet.reason.endswith("others have failed, and are left out")
    fleet.outliers.succeeded(1)
    assert fleet.elsewhere() is not None


@pytest.mark.usefixtures("loop")
def test_who_computes_prompts_is_asked_for_answers_last() -> None:
    fleet = Fleet("prefill", "decode", "both")
    assert fleet.replicas.candidates("m") == [1, 2]
    for place in (1, 2):
        fleet.replicas.all[place].is_not(State.STALE, "it is silent")
    assert fleet.replicas.candidates("m") == [1, 2]
    for place in (1, 2):
        fleet.replicas.all[place].is_not(State.UNREACHABLE, "it is gone")
    assert fleet.replicas.candidates("m") == [0]
    # It does not hand over to itself.
    assert fleet.elsewhere(place=0) is None
    with pytest.raises(ModelNotFound):
        fleet.replicas.candidates("another")


def test_an_offer_is_read_as_it_is_written() -> None:
    offer = Offer("127.0.0.1:9 00ff", 17)
    assert offer_in(offer.value) == offer_in_comment(offer.comment) == offer
    assert offer_of(Head(200, [(HANDOVER, offer.value)])) == offer
    assert offer_of(Head(200, [])) is None and offer_of(Head(200, [(HANDOVER, b"1")])) is None
    assert offer_in_comment(b"1,2,3") is None and offer_in_comment(b"offer x") is None


def telling(role: str) -> Script:
    """The state of a replica with a role, once, on a connection that stays open."""
    state = {"at": time.time(), "instance": "one", "models": ["scripted"], "role": role, "identity": "alike"}
    state["form"] = "of blocks"
    return lambda _request: stream(json.dumps(state).encode() + b"\n", lambda: False, kind="application/x-ndjson")


def offering(_request: Received) -> list[Step]:
    """It has computed the prompt."""
    offer = Offer("127.0.0.1:9 00ff", 3).value.decode()
    head = f"HTTP/1.1 200 OK\r\n{HANDOVER.decode()}: {offer}\r\ncontent-length: 2\r\n\r\n"
    return [head.encode() + b"{}"]


def refusing(status: int) -> Script:
    return lambda _request: answer(b'{"error": {"message": "no"}}', status)


@pytest.fixture
def apart(gateway: Start) -> Callable[..., Gateway]:
    """Starts a gateway that hands all prompts over, to who answers them as a script says."""

    def start(computes: Script, **options: object) -> Gateway:
        always, never = HandoverOptions(when="always", least_tokens=0), Timeouts(connect=PATIENCE, silence=PATIENCE)
        told = [telling("prefill"), telling("decode")]
        started = gateway(computes, whole_answer, told=told, handover=always, timeouts=never, **options)
        until(lambda: all(each.told is not None for each in started.replicas.all))
        return started

    return start


def test_an_offer_goes_to_who_decodes_with_the_request(apart: Callable[..., Gateway]) -> None:
    started = apart(offering)
    found = started.complete(max_tokens=2, stream=True)
    assert found.status_code == 200 and found.text.count("w ") == 2
    prefill, decode = started.servers
    assert started.asked == [1, 1] and started.dispatch.figures.handed_over == 1
    assert prefill.asked[0].headers[HANDOVER.decode()] == "1" and OFFER.decode() not in prefill.asked[0].headers
    assert HANDOVER.decode() not in decode.asked[0].headers
    assert offer_in(decode.asked[0].headers[OFFER.decode()].encode()) == Offer("127.0.0.1:9 00ff", 3)
    assert found.headers["x-penstock-replica"] == decode.base and HANDOVER.decode() not in found.headers
    started.wait_until_empty()
    # How long it took is learnt.
    assert started.dispatch.handing.times.expected(1000) != TransferTimes().expected(1000)


@pytest.mark.parametrize("computes", [refusing(503), refusing(500), lambda _request: [CLOSE]])
def test_who_decodes_computes_what_no_other_one_has(computes: Script, apart: Callable[..., Gateway]) -> None:
    started = apart(computes)
    found = started.complete(max_tokens=2)
    assert found.status_code == 200 and started.dispatch.figures.handed_over == 0
    [asked] = started.servers[1].asked
    assert not {HANDOVER.decode(), OFFER.decode()} & asked.headers.keys()
    started.wait_until_empty()


def test_what_is_not_offered_is_no_prompt_handed_over(apart: Callable[..., Gateway]) -> None:
    nothing = Offer().value.decode()
    head = f"HTTP/1.1 200 OK\r\n{HANDOVER.decode()}: {nothing}\r\ncontent-length: 2\r\n\r\n{{}}"
    started = apart(lambda _request: [head.encode()])
    assert started.complete(max_tokens=2, stream=True).status_code == 200
    assert started.asked == [1, 1] and started.dispatch.figures.handed_over == 0
    assert OFFER.decode() not in started.servers[1].asked[0].headers
    started.wait_until_empty()
    assert started.dispatch.handing.times.expected(1000) == TransferTimes().expected(1000)


def test_several_prompts_stay_together(apart: Callable[..., Gateway]) -> None:
    started = apart(offering)
    assert started.complete(prompt=["the fox", "the dog"], max_tokens=2).status_code == 200
    assert started.asked == [0, 1]
    started.wait_until_empty()


def test_who_has_computed_a_prompt_is_not_to_blame_for_others_that_are_gone(apart: Callable[..., Gateway]) -> None:
    def computes(request: Received) -> list[Step]:
        for replica in started.replicas.all:
            replica.is_not(State.DRAINING, "its machine is taken away")
        return offering(request)

    started = apart(computes, hold=HoldOptions(seconds=0.0))
    found = started.complete(max_tokens=2)
    assert found.status_code >= 500 and "it has computed the prompt, and no replica can go on" in found.text
    started.wait_until_empty()
    assert started.asked == [1, 0] and not started.dispatch.figures.failures[0]


def test_what_is_wrong_with_a_request_is_said_once(apart: Callable[..., Gateway]) -> None:
    started = apart(refusing(400))
    assert started.complete(max_tokens=2).status_code == 400 and started.asked == [1, 0]
    started.wait_until_empty()
