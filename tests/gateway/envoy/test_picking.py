"""What an endpoint picker answers to each message, without an Envoy."""

import asyncio
import socket
from collections.abc import Callable, Sequence
from typing import Any

import pytest

pytest.importorskip("grpc", reason="the extra envoy is not installed")

from penstock.assembly.picking import check_pickable
from penstock.core.errors import ConfigurationError
from penstock.gateway.app import MAX_BODY_BYTES
from penstock.gateway.dispatch import Dispatch
from penstock.gateway.envoy.messages import DESTINATION
from penstock.gateway.envoy.picking import Picking
from penstock.gateway.envoy.protocol import FULL_DUPLEX_STREAMED, Message, ProcessingRequest
from penstock.gateway.options import FleetOptions
from penstock.gateway.pool import Pool, address_of
from penstock.gateway.rules import Rule
from penstock.http.body import BodyRoom
from penstock.server.dialects import DIALECTS

BODY = b'{"model": "m", "prompt": "the fox"}'
PLACES = ("10.0.0.1:8000", "10.0.0.2:8000", "[fd00::3]:8000")


def dispatch(policy: str = "round-robin", names: Sequence[str] = PLACES) -> Dispatch:
    """Of replicas that are ready, and are never asked."""
    fleet = Dispatch(FleetOptions(policy=policy), first=0)
    for name in names:
        fleet.add(Pool(address_of(f"http://{name}")), None).is_ready(["m"])
    return fleet


def headers(path: str = "/v1/completions", *, ends: bool = False, method: str = "POST", **more: str) -> Message:
    """The beginning of a request."""
    message = ProcessingRequest()
    for name, value in {":method": method, ":path": path, **more}.items():
        message.request_headers.headers.headers.add(key=name, raw_value=value.encode())
    message.request_headers.end_of_stream = ends
    message.protocol_config.request_body_mode = FULL_DUPLEX_STREAMED
    return message


def piece(body: bytes = BODY, *, ends: bool = True) -> Message:
    """Some of its body."""
    message = ProcessingRequest()
    message.request_body.body, message.request_body.end_of_stream = body, ends
    return message


def status(code: int, **attributes: str) -> Message:
    """The beginning of an answer."""
    message = ProcessingRequest()
    message.response_headers.headers.headers.add(key=":status", raw_value=b"%d" % code)
    entry = message.attributes.add(key="envoy.filters.http.ext_proc")
    for name, value in attributes.items():
        entry.value.fields[name.replace("_", ".")].string_value = value
    return message


def played(
    fleet: Dispatch, *messages: Message, then: Callable[[Picking], None] | None = None, room: int = 1 << 30
) -> list[list[Message]]:
    """What each message is answered; at last Envoy is done with the request."""

    async def play() -> list[list[Message]]:
        picking = Picking(fleet, DIALECTS, BodyRoom(room))
        found = [await picking.take(message) for message in messages]
        if then is not None:
            then(picking)
        picking.end()
        return found

    return asyncio.run(play())


def destination(answers: Sequence[Message]) -> list[str]:
    """The endpoints of an answer, which headers and metadata tell alike."""
    common = answers[0].request_headers.response
    [told] = [
        each.header.raw_value.decode() for each in common.header_mutation.set_headers if each.header.key == DESTINATION
    ]
    metadata = answers[0].dynamic_metadata.fields["envoy.lb"].struct_value.fields[DESTINATION]
    assert metadata.string_value == told
    return told.split(",")


def refusal(answers: Sequence[Message]) -> tuple[int, str]:
    """The status and the text of a request that goes nowhere."""
    [answer] = answers
    return answer.immediate_response.status.code, answer.immediate_response.body.decode()


def test_the_first_endpoint_is_chosen_and_others_stand_behind_it() -> None:
    fleet = dispatch()
    for turn in range(3):
        nothing, answers = played(fleet, headers(), piece())
        assert nothing == [] and sorted(destination(answers)) == sorted(PLACES)
        assert destination(answers)[0] == PLACES[turn]
        assert answers[1].request_body.response.body_mutation.streamed_response.body == BODY
        assert answers[1].request_body.response.body_mutation.streamed_response.end_of_stream
    assert fleet.figures.sent == {0: 1, 1: 1, 2: 1} and fleet.router.loads.requests == [0, 0, 0]


def test_a_body_in_pieces_goes_on_once_it_is_whole_and_trailers_end_it_too() -> None:
    fleet, trailers = dispatch(), ProcessingRequest()
    trailers.request_trailers.SetInParent()
    first, second, third, end = played(
        fleet, headers(), piece(BODY[:9], ends=False), piece(BODY[9:], ends=False), trailers
    )
    assert first == second == third == []
    head, body, last = end
    assert len(destination([head])) == 3 and last.HasField("request_trailers")
    streamed = body.request_body.response.body_mutation.streamed_response
    assert streamed.body == BODY and not streamed.end_of_stream


def test_the_body_s_beginning_that_is_no_json_is_refused_and_counted() -> None:
    fleet = dispatch()
    _, answers = played(fleet, headers(), piece(b'{"model": '))
    code, text = refusal(answers)
    assert code == 400 and "The body cannot be read" in text
    assert fleet.figures.requests["invalid"] == 1 and not any(fleet.figures.sent.values())


def test_a_body_that_is_too_large_is_refused_before_it_ends() -> None:
    _, _, answers = played(dispatch(), headers(), piece(bytes(MAX_BODY_BYTES), ends=False), piece(b"x", ends=False))
    assert refusal(answers)[0] == 413


@pytest.mark.parametrize("told", ["10.0.0.2:8000", "10.9.9.9:1, 10.0.0.2:8000"])
@pytest.mark.parametrize("as_list", [False, True])
def test_a_subset_is_kept_to(told: str, as_list: bool) -> None:
    begin = headers()
    value = begin.metadata_context.filter_metadata.add(key="envoy.lb.subset_hint").value
    field = value.fields["x-gateway-destination-endpoint-subset"]
    if as_list:
        for each in told.split(","):
            field.list_value.values.add(string_value=each)
    else:
        field.string_value = told
    fleet = dispatch()
    for _ in range(3):
        assert destination(played(fleet, begin, piece())[1]) == ["10.0.0.2:8000"]


@pytest.mark.parametrize("told", ["", "10.9.9.9:1"])
def test_of_a_subset_without_replicas_none_is_taken(told: str) -> None:
    begin = headers()
    value = begin.metadata_context.filter_metadata.add(key="envoy.lb.subset_hint").value
    value.fields["x-gateway-destination-endpoint-subset"].string_value = told
    code, text = refusal(played(dispatch(), begin, piece())[1])
    assert code == 503 and "No replica is among the endpoints" in text


def test_without_replicas_it_is_503_and_with_too_much_to_do_429() -> None:
    begin, asked = headers(), piece(b'{"model": "m", "prompt": "x", "timeout": 0}')
    empty = Dispatch(FleetOptions(), first=0)
    assert refusal(played(empty, begin, asked)[1])[0] == 503
    full = dispatch(names=PLACES[:1])
    full.router.loads.most[0] = 0
    _, [answer] = played(full, begin, asked)
    assert answer.immediate_response.status.code == 429
    named = {each.header.key: each.header.raw_value for each in answer.immediate_response.headers.set_headers}
    assert int(named["retry-after"]) >= 1
    assert full.figures.requests["refused"] == 1


def test_errors_have_the_form_of_their_path() -> None:
    _, answers = played(dispatch(), headers("/v1/messages"), piece(b'{"model": "none"}'))
    code, text = refusal(answers)
    assert code == 404 and '"type":"error"' in text.replace(" ", "")


def test_other_paths_go_to_any_replica_at_once() -> None:
    [answers] = played(dispatch(), headers("/v1/models?x=1", ends=True, method="GET"))
    assert destination(answers)[0] == PLACES[0] and len(answers) == 1


@pytest.mark.parametrize("by", [{"upstream_address": "10.0.0.2:8000"}, {}])
def test_an_answer_is_counted_at_the_replica_that_gave_it(by: dict[str, str]) -> None:
    fleet = dispatch()

    def look(_picking: Picking) -> None:
        assert fleet.router.loads.requests == ([0, 1, 0] if by else [1, 0, 0])
        assert fleet.router.loads.reading == [0, 0, 0]

    played(fleet, headers(), piece(), status(200, **by), then=look)
    assert fleet.router.loads.requests == [0, 0, 0]
    [way] = fleet.ways.latest("", 1, slowest=False)
    assert [each.replica for each in way.tries] == [f"http://{each}" for each in PLACES[: 2 if by else 1]]
    assert way.outcome == "answered" and way.tries[-1].ended == "answered with status 200"
    assert (fleet.figures.failures[0], fleet.figures.failures[1]) == (1 if by else 0, 0)


def test_replicas_whose_answers_are_faults_are_left_out() -> None:
    fleet = dispatch(names=PLACES[:2])
    for turn in range(12):
        # They take turns until the first one is left out.
        played(fleet, headers(), piece(), status(500 if turn % 2 == 0 else 200))
        if fleet.outliers.why(0, 0.0) is not None:
            break
    assert fleet.figures.failures == {0: 3}
    # By when it is tried again is the clock's matter.
    assert fleet.outliers.out(0.0) == [0]


def test_what_answers_use_is_read() -> None:
    fleet, answer = dispatch(), ProcessingRequest()
    answer.response_body.body = b'{"usage": {"prompt_tokens": 7, "completion_tokens": 5}}'
    *_, passed = played(fleet, headers(), piece(), status(200), answer)
    assert passed[0].HasField("response_body")
    [way] = fleet.ways.latest("", 1, slowest=False)
    assert way.used is not None and way.used.output == 5
    assert fleet.demands.told([])[0].counted.output == 5


def resolve(host: str, port: int, *_: object, **__: object) -> list[tuple[object, ...]]:
    """A name server that knows one name."""
    if host != "known":
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
    return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("10.0.0.7", port))]


def test_names_of_replicas_become_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    # One without an address is none that stands behind others.
    fleet = dispatch(names=["known:8000", "unknown:8000"])
    assert destination(played(fleet, headers(), piece())[1]) == ["10.0.0.7:8000"]
    code, text = refusal(played(fleet, headers(), piece())[1])
    assert code == 503 and "http://unknown:8000 has no address now" in text
    assert fleet.figures.failures == {1: 1} and fleet.router.loads.requests == [0, 0]
    # An answer is counted at the replica of the address that Envoy was told.
    played(fleet, headers(), piece(), status(200, upstream_address="10.0.0.7:8000"))
    [way] = fleet.ways.latest("", 1, slowest=False)
    assert [each.ended for each in way.tries] == ["answered with status 200"]
    subset = headers()
    told = subset.metadata_context.filter_metadata.add(key="envoy.lb.subset_hint").value
    told.fields["x-gateway-destination-endpoint-subset"].string_value = "10.0.0.7:8000"
    for _ in range(2):
        assert destination(played(fleet, subset, piece())[1]) == ["10.0.0.7:8000"]


def test_bodies_that_are_held_have_a_bound_together() -> None:
    long = piece(b'{"prompt": "' + b"x" * 200_000 + b'"}')
    code, text = refusal(played(dispatch(), headers(), long, room=100_000)[1])
    assert code == 429 and "as many long requests as it has room for" in text
    # One that was sent on is held no longer.
    fleet, room = dispatch(), BodyRoom(200_000)

    async def play() -> None:
        for _ in range(3):
            picking = Picking(fleet, DIALECTS, room)
            await picking.take(headers())
            assert len(await picking.take(long)) > 1

    asyncio.run(play())


def test_a_replica_that_is_left_out_stands_behind_no_other() -> None:
    fleet = dispatch(names=PLACES[:2])
    for _ in range(3):
        fleet.outliers.failed(1, float("inf"))
    assert destination(played(fleet, headers(), piece())[1]) == [PLACES[0]]


def test_what_is_kept_beyond_the_subset_is_not_looked_for_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = dispatch()
    fleet.kept.note("resp_1", fleet.replicas.all[0])
    begin = headers("/v1/responses/resp_1", ends=True, method="GET")
    assert destination(played(fleet, begin)[0]) == [PLACES[0]]
    told = begin.metadata_context.filter_metadata.add(key="envoy.lb.subset_hint").value
    told.fields["x-gateway-destination-endpoint-subset"].string_value = PLACES[1]
    code, text = refusal(played(fleet, begin)[0])
    assert code == 503 and "No replica is among the endpoints" in text


def test_a_refusal_has_the_request_s_id() -> None:
    _, [answer] = played(dispatch(), headers(**{"x-request-id": "mine"}), piece(b"{"))
    named = {each.header.key: each.header.raw_value for each in answer.immediate_response.headers.set_headers}
    assert named["x-request-id"] == b"mine"


@pytest.mark.parametrize(
    ("options", "keyed", "cause"),
    [
        ({}, True, "cannot have keys"),
        ({"rule": (Rule(model="a", to="m"),)}, False, r"cannot have \[\[rule\]\]"),
    ],
)
def test_what_envoy_would_pass_over_is_refused(options: dict[str, Any], keyed: bool, cause: str) -> None:
    with pytest.raises(ConfigurationError, match=cause):
        check_pickable(FleetOptions(**options), keyed=keyed)


def test_what_it_does_itself_is_let_be() -> None:
    check_pickable(FleetOptions(policy="prefix"), keyed=False)
