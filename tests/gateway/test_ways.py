"""A request's way through the gateway is remembered, and told to whose it is."""

import pytest

from gateway.conftest import Start
from penstock.cli.explain import run_explain
from penstock.gateway.ways import MOST_REMEMBERED, Way, Ways
from support.scripted_http import answer, whole_answer


def test_it_is_found_by_its_id_and_by_its_clients_for_whose_it_is() -> None:
    ways = Ways()
    first, second, other = Way("1", "/", "a", "mine"), Way("2", "/", "a", "mine"), Way("3", "/", "b", "mine")
    for way in (first, second, other):
        ways.begin(way)
    assert ways.find("1", "a") is first and ways.find("1", "b") is None and ways.find("4", "a") is None
    assert ways.find("mine", "a") is second and ways.find("mine", "b") is other and ways.find("mine", "c") is None
    for number in range(MOST_REMEMBERED):
        ways.begin(Way(f"later {number}", "/"))
    assert ways.find("1", "a") is None


def test_all_replicas_that_were_asked_are_told(gateway: Start, capsys: pytest.CaptureFixture[str]) -> None:
    started = gateway(lambda _request: answer(b"{}", 500), whole_answer)
    answered = started.complete(max_tokens=2)
    told = started.http.get(f"/v1/requests/{answered.headers['x-request-id']}/explain").json()
    # These replicas say nothing of what they did.
    assert list(told) == ["gateway"]
    way = told["gateway"]
    assert way["outcome"] == "answered" and way["path"] == "/v1/completions"
    assert [each["replica"] for each in way["tries"]] == [each.name for each in started.replicas.all]
    assert [each["ended"] for each in way["tries"]] == ["it answered with status 500", "answered with status 200"]
    # Replicas know it by the gateway's id.
    ids = {server.asked[0].headers["x-request-id"] for server in started.servers}
    assert ids == {way["id"]} == {answered.headers["x-request-id"]}
    run_explain(way["id"], started.url, None, None, slowest=False, limit=5, as_json=False)
    printed = capsys.readouterr().out
    assert "it answered with status 500; sent there since its turn" in printed
    assert "The replica does not say what it did." in printed
    missing = started.http.get("/v1/requests/unheard/explain")
    assert missing.status_code == 404 and "'unheard' of yours is remembered" in missing.json()["error"]["message"]
