"""A replica that several machines of a Ray cluster compute together; here these are actors on one."""

import os
import signal
from collections.abc import Iterator

import httpx
import psutil
import pytest

from penstock import LLM, SamplingParams
from support.fleets import Fleet, fleet_up
from support.waiting import PATIENCE, SELDOM, until

pytest.importorskip("ray", reason="Ray is not installed")
pytestmark = pytest.mark.slow

DESCRIBED = """
[gateway]
port = 0
[[model]]
name = "haiku-draft"
machines = 2
cores = 1
options = { pipeline_parallel_size = 2, max_num_seqs = 4, dtype = "float32" }
"""
PROMPT = "An old house by the sea"


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with fleet_up(tmp_path_factory.mktemp("fleet"), DESCRIBED, "ray") as running:
        yield running


def _joined(fleet: Fleet) -> list[psutil.Process]:
    """Processes of `penstock join` with this fleet's models, but for what started them."""
    found = []
    for each in psutil.process_iter(["cmdline", "environ"]):
        command, environment = each.info["cmdline"] or [], each.info["environ"] or {}
        own = environment.get("PENSTOCK_DATA") == str(fleet.file.parent / "data")
        if own and "penstock.cli.main" in command and "join" in command and "launcher.py" not in " ".join(command):
            found.append(each)
    return found


def _answer(url: str) -> str:
    body = {"model": "haiku-draft", "prompt": PROMPT, "max_tokens": 8, "temperature": 0}
    answered = httpx.post(f"{url}/v1/completions", json=body, timeout=PATIENCE)
    assert answered.status_code == 200, answered.text
    text: str = answered.json()["choices"][0]["text"]
    return text


def test_machines_of_a_cluster_give_the_tokens_of_one_process_and_come_back(fleet: Fleet) -> None:
    llm = LLM("haiku-draft", device="cpu", threads=1, dtype="float32", speculative="off")
    expected = llm.generate([PROMPT], SamplingParams(max_tokens=8, temperature=0.0))[0].text
    url = fleet.until_settled().gateway.url
    assert _answer(url) == expected
    (joined,) = _joined(fleet)
    before = fleet.replicas[0].name
    os.kill(joined.pid, signal.SIGKILL)
    until(lambda: all(each.name != before for each in fleet.replicas), fleet.log, pause=SELDOM)
    assert _answer(fleet.until_settled().gateway.url) == expected
    # The other one's part has ended with it.
    until(lambda: len(_joined(fleet)) == 1, fleet.log, pause=SELDOM)
