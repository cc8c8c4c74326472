"""A fleet of real processes, from one file: it serves, heals, is updated under load, and ends in order."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import httpx
import msgspec
import psutil
import pytest

from penstock.fleet.status import FleetStatus
from support.fleets import Clients, Fleet, fleet_up, pid_of
from support.waiting import PATIENCE, SELDOM, until

DESCRIBED = """
budget_per_hour = 5.0

[gateway]
port = 0

# However slow the machine is.
[gateway.hold]
seconds = 3000.0

[gateway.timeouts]
connect = 300.0

[[model]]
name = "haiku"
replicas = { least = 1, most = 3 }
cost_per_hour = 1.0
options = { max_num_seqs = 8 }

[[model]]
name = "other"
model = "haiku"
cost_per_hour = 1.0

[[model]]
name = "rare"
model = "haiku"
replicas = { least = 0, most = 2, forecast = true }
cost_per_hour = 2.0
down_seconds = 2
"""


# Where it runs makes no difference to what is decided; starts, ends and failures are looked at everywhere.
RAY = pytest.param("ray", marks=pytest.mark.slow)
EVERYWHERE = pytest.mark.parametrize("fleet", ["local", "ray"], indirect=True)
LOCAL = pytest.mark.parametrize("fleet", ["local"], indirect=True)


@pytest.fixture(scope="module")
def fleet(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with fleet_up(tmp_path_factory.mktemp("fleet"), DESCRIBED, request.param) as running:
        yield running


@pytest.fixture
def settled(fleet: Fleet) -> Fleet:
    """The module's fleet, all of it there, with two replicas of the first model."""
    if fleet.until_settled().models[0].wanted != 2:
        assert fleet.command("scale", "haiku=2").returncode == 0
    return fleet


@EVERYWHERE
def test_every_model_is_served_on_one_address(settled: Fleet) -> None:
    status = settled.until_settled()
    assert sorted(each.model for each in status.replicas) == ["haiku", "haiku", "other"]
    assert {each.phase for each in status.replicas} == {"ready"}
    url = status.gateway.url
    models = httpx.get(f"{url}/v1/models", timeout=PATIENCE).json()["data"]
    assert {each["id"] for each in models} == {"haiku", "other", "rare"}
    for name in ("haiku", "other"):
        body = {"model": name, "prompt": "The rain", "max_tokens": 3}
        assert httpx.post(f"{url}/v1/completions", json=body, timeout=PATIENCE).json()["model"] == name
    # Nobody but the gateway can ask a replica.
    asked = httpx.post(f"{status.replicas[0].url}/v1/completions", json={"prompt": "a"}, timeout=PATIENCE)
    assert asked.status_code == 401
    shown = settled.command("status").stdout
    assert all(each.name in shown and each.where in shown for each in status.replicas)
    assert "haiku: 2 of 2 ready" in shown
    printed = msgspec.json.decode(settled.command("status", "--json").stdout, type=FleetStatus)
    assert [each.name for each in printed.replicas] == [each.name for each in status.replicas]


@LOCAL
def test_a_model_without_requests_has_no_replica(settled: Fleet) -> None:
    """The first request starts one, which ends again once there are none."""

    def there() -> list[str]:
        return [each.name for each in settled.replicas if each.model == "rare"]

    url = settled.until_settled().gateway.url
    until(lambda: not there(), settled.log, pause=SELDOM)
    body = {"model": "rare", "prompt": "The rain", "max_tokens": 3}
    answered = httpx.post(f"{url}/v1/completions", json=body, timeout=PATIENCE)
    assert answered.status_code == 200 and answered.json()["model"] == "rare", answered.text
    until(lambda: not there(), settled.log, pause=SELDOM)
    assert "rare: 0 of 0 ready (follows the load)" in settled.command("status").stdout
    # A person may say the number, and leave it to the load again.
    assert settled.command("scale", "rare=1").returncode == 0
    assert len(there()) == 1
    refused = settled.command("scale", "rare=2")
    assert (
        refused.returncode != 0
        and "would cost 7 dollars an hour, and budget_per_hour of the fleet is 5" in refused.stderr
    )
    assert settled.command("scale", "rare=auto").returncode == 0
    refused = settled.command("scale", "other=auto")
    assert refused.returncode != 0 and "write bounds there" in refused.stderr
    until(lambda: not there(), settled.log, pause=SELDOM)


@pytest.mark.parametrize("fleet", ["local", RAY], indirect=True)
def test_whatever_is_killed_comes_back_and_no_client_notices(settled: Fleet) -> None:
    """A replica's server, and its engine. Streams go on elsewhere."""
    before = settled.until_settled()
    server, other = (pid_of(each.where) for each in before.replicas if each.model == "haiku")
    [engine] = psutil.Process(other).children()
    with Clients(before.gateway.url, "haiku", 4) as clients:
        clients.until_more(4)
        os.kill(server, signal.SIGKILL)
        clients.until_more(4)
        until(lambda: server not in [pid_of(each.where) for each in settled.replicas], settled.log, pause=SELDOM)
        settled.until_settled()
        engine.kill()
        clients.until_more(8)
    assert clients.wrong == []
    # The only one of its model: who asks for that waits for the next.
    [only] = (each for each in before.replicas if each.model == "other")
    os.kill(pid_of(only.where), signal.SIGKILL)
    body = {"model": "other", "prompt": "The rain", "max_tokens": 3}
    answered = httpx.post(f"{before.gateway.url}/v1/completions", json=body, timeout=PATIENCE)
    assert answered.status_code == 200, answered.text
    after = settled.until_settled()
    assert [each.restarts for each in after.models[:2]] == [each.restarts + 1 for each in before.models[:2]]
    assert any("SIGKILL" in each for each in after.told)


@LOCAL
def test_a_gateway_that_is_killed_comes_back_on_its_address(settled: Fleet) -> None:
    before = settled.until_settled()
    os.kill(pid_of(before.gateway.where), signal.SIGKILL)
    # The connection is taken by the next one.
    body = {"model": "haiku", "prompt": "The rain", "max_tokens": 3}
    answered = httpx.post(f"{before.gateway.url}/v1/completions", json=body, timeout=PATIENCE)
    assert answered.status_code == 200, answered.text
    after = settled.until_settled()
    assert after.gateway.restarts == before.gateway.restarts + 1 and after.gateway.url == before.gateway.url
    assert [each.name for each in after.replicas] == [each.name for each in before.replicas]


@LOCAL
def test_an_update_under_load_fails_no_request_and_changes_no_token(settled: Fleet) -> None:
    """Of a model, and of the gateway."""
    before = settled.until_settled()
    with Clients(before.gateway.url, "haiku", 4) as clients:
        clients.until_more(4)
        changed = DESCRIBED.replace("max_num_seqs = 8", "max_num_seqs = 9").replace(
            "port = 0", 'port = 0\npolicy = "least-loaded"'
        )
        settled.file.write_text(changed)
        updated = settled.command("update")
        assert updated.returncode == 0, updated.stderr
        clients.until_more(4)
    assert clients.wrong == []
    after = settled.until_settled()
    names = {each.name for each in before.replicas if each.model == "haiku"}
    assert not names & {each.name for each in after.replicas}
    # What is described as before is left alone.
    assert {each.name for each in before.replicas if each.model == "other"} <= {each.name for each in after.replicas}
    assert after.gateway.where != before.gateway.where and after.gateway.restarts == before.gateway.restarts
    policy = httpx.get(f"{after.gateway.url}/v1/fleet", timeout=PATIENCE).json()["policy"]
    assert policy == "least-loaded"


@LOCAL
def test_an_update_that_cannot_be_changes_nothing(settled: Fleet) -> None:
    before, text = settled.until_settled(), settled.file.read_text()
    for old, new, sentence in (
        ("max_num_seqs", "max_num_sekws", "The model haiku: No such option: --max-num-sekws"),
        ('model = "haiku"', 'model = "haikoo"', "The model other: "),
        ("most = 3 }", "most = 3 }\ncores = 64", "this machine has"),
        ("most = 3 }", 'most = 3 }\nmemory = "90TiB"', "are available"),
        ("port = 0", "port = 0\noptions = { no_such = 1 }", "The gateway: No such option"),
        ("port = 0", "port = 1", "Where the gateway listens is not updated"),
    ):
        assert old in text
        settled.file.write_text(text.replace(old, new))
        refused = settled.command("update")
        assert refused.returncode != 0 and sentence in refused.stderr, (refused.stdout, refused.stderr)
        assert len(refused.stderr.strip().splitlines()) == 1
    settled.file.write_text(text)
    after = settled.until_settled()
    assert [each.name for each in after.replicas] == [each.name for each in before.replicas]


@LOCAL
def test_an_update_whose_replicas_do_not_start_is_taken_back(settled: Fleet) -> None:
    before, text = settled.until_settled(), settled.file.read_text()
    taken = httpx.URL(before.gateway.url).port
    settled.file.write_text(text.replace("{ max_num", f'{{ kv_events = "127.0.0.1:{taken}", max_num'))
    refused = settled.command("update")
    assert refused.returncode != 0 and "The update of haiku is taken back" in refused.stderr, refused.stderr
    assert str(taken) in refused.stderr
    settled.file.write_text(text)
    after = settled.until_settled()
    assert {each.name for each in after.replicas} == {each.name for each in before.replicas}


@LOCAL
def test_one_replica_is_replaced_when_asked(settled: Fleet) -> None:
    before = settled.until_settled()
    name = before.replicas[0].name
    assert settled.command("drain", name).returncode == 0
    assert name not in [each.name for each in settled.replicas]
    refused = settled.command("drain", name)
    assert refused.returncode != 0 and f"has no replica '{name}'" in refused.stderr
    refused = settled.command("scale", "haiku=4")
    assert refused.returncode != 0 and "from 1 to 3 replicas" in refused.stderr


@LOCAL
def test_a_second_fleet_of_the_name_is_refused(settled: Fleet) -> None:
    refused = settled.command("up")
    assert refused.returncode != 0 and f"process {settled.process.pid}" in refused.stderr


@LOCAL
def test_a_fleet_that_does_not_run(tmp_path: Path, settled: Fleet) -> None:
    file = tmp_path / "away.toml"
    file.write_text('[[model]]\nname = "haiku"')
    refused = settled.command("status", str(file))
    assert refused.returncode != 0 and "The fleet away does not run; `penstock fleet up" in refused.stderr
