"""A decoder and an encoder in one server: both serve, neither takes the other along, and both end in order."""

import json
import re
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import psutil
import pytest
import torch
import transformers

from penstock.access.exposure import Access
from penstock.assembly.__main__ import LAST_NICENESS, NICENESS
from penstock.assembly.server_options import ServeOptions
from penstock.assembly.serving import explain_server
from penstock.cli.companions import companions
from penstock.configuration.options import EngineOptions
from penstock.core.config import Reason
from penstock.core.errors import ConfigurationError, StartupError
from support.live_server import RunningServer, serving
from support.operator import Operator
from support.tokenizers_made import write_words
from support.waiting import PATIENCE, until

TOKENS = 60
STREAM = {"model": "tiny-llama", "prompt": "the fox", "max_tokens": TOKENS, "seed": 7, "ignore_eos": True}
TEXT = {"model": "bert", "input": "word1 word2"}


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "tiny-bert"
    size = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.BertConfig(vocab_size=80, max_position_embeddings=64, **size)
    torch.manual_seed(0)
    transformers.BertModel(config).save_pretrained(folder)
    write_words(folder, [f"word{number}" for number in range(60)])
    return folder


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The operator's socket, and what the server writes."""
    folder = tmp_path_factory.mktemp("server")
    return folder / "socket", folder / "log"


@pytest.fixture(scope="module")
def server(served_checkpoint: Path, encoder: Path, places: tuple[Path, Path]) -> Iterator[RunningServer]:
    companion = f"'{encoder}' --served-model-name bert --threads 1 --max-num-seqs 4"
    options = ("--threads", "1", "--admin-socket", str(places[0]), "--with", companion)
    with serving(served_checkpoint, *options, log=places[1]) as running:
        yield running


def engines(server: RunningServer) -> list[psutil.Process]:
    """The processes of the decoder and the encoder: they start in this order."""
    first, second = sorted(psutil.Process(server.process.pid).children(), key=psutil.Process.create_time)
    return [first, second]


def vector(server: RunningServer) -> object:
    return server.post("/v1/embeddings", TEXT)["data"]


def text_of(server: RunningServer) -> object:
    return server.post("/v1/completions", STREAM)["choices"]


def test_both_serve_on_one_port_and_tell_their_memory(server: RunningServer, places: tuple[Path, Path]) -> None:
    assert [card["id"] for card in json.loads(server.get("/v1/models"))["data"]] == ["tiny-llama", "bert"]
    assert vector(server) and text_of(server)
    log = places[1].read_text()
    told = re.search(r"memory: tiny-llama [0-9.]+ [MG]iB \+ bert [0-9.]+ [MG]iB \(weights", log)
    assert told and "Serving tiny-llama, bert on" in log and "Start-up budget of bert:" in log
    with Operator(places[0]).client() as client:
        settings = {each["setting"]: each["value"] for each in client.get("/config").json()}
    assert settings["bert: max num seqs"] == "4" and settings["tiny-llama: threads"] == "1"
    assert settings["bert: gives way"] == "yes" and "tiny-llama: gives way" not in settings


def test_who_generates_comes_first(server: RunningServer) -> None:
    niceness = psutil.Process(server.process.pid).nice()
    if niceness + NICENESS >= LAST_NICENESS:
        pytest.skip("the tests have the last priority themselves")
    assert [engine.nice() for engine in engines(server)] == [
        niceness + NICENESS,
        min(LAST_NICENESS, niceness + LAST_NICENESS),
    ]


def test_a_stream_goes_on_while_the_other_engine_is_killed_and_comes_back(
    server: RunningServer, places: tuple[Path, Path]
) -> None:
    operator, canary, expected = Operator(places[0]), text_of(server), vector(server)
    decoder, encoder = engines(server)
    pieces: list[str] = []
    begun = threading.Event()

    def stream() -> None:
        with httpx.stream(
            "POST", f"{server.base}/v1/completions", json={**STREAM, "stream": True}, timeout=PATIENCE
        ) as got:
            for line in got.iter_lines():
                if line.startswith("data: {"):
                    pieces.append(json.loads(line[6:])["choices"][0]["text"])
                    begun.set()

    with ThreadPoolExecutor(2) as pool:
        with operator.client() as client:
            client.post("/pause", json={"paused": True, "after_steps": 8})
            client.post("/pause?model=bert", json={"paused": True})
            streaming = pool.submit(stream)
            assert begun.wait(PATIENCE)
            # It waits in the engine that is killed.
            asked = pool.submit(vector, server)
            until(lambda: json.loads(server.get("/v1/stats?model=bert"))["now"]["in_flight"] == 1)
            encoder.kill()
            assert asked.result(PATIENCE) == expected
            assert not streaming.done()
            client.post("/pause", json={"paused": False})
        streaming.result(PATIENCE)
    assert "".join(pieces) == canary[0]["text"]  # type: ignore[index]
    restarts = {name: json.loads(server.get(f"/v1/stats?model={name}"))["restarts"] for name in ("tiny-llama", "bert")}
    assert restarts == {"tiny-llama": 0, "bert": 1}
    assert json.loads(server.get("/health/ready"))["models"] == {"tiny-llama": "ready", "bert": "ready"}

    assert engines(server)[0] == decoder and engines(server)[1] != encoder


def test_the_end_lets_both_finish(server: RunningServer, places: tuple[Path, Path]) -> None:
    """The last test of the server, which it ends."""
    with Operator(places[0]).client() as client, ThreadPoolExecutor(2) as pool:
        for model in ("tiny-llama", "bert"):
            client.post(f"/pause?model={model}", json={"paused": True})
        asked = [pool.submit(text_of, server), pool.submit(vector, server)]
        server.wait_for("penstock_requests_in_flight", 2)
        children = engines(server)
        server.process.terminate()
        # Nothing new begins, and what runs goes on.
        until(lambda: "stopping" in (json.loads(server.get("/v1/stats"))["why_not"] or ""))
        assert httpx.post(f"{server.base}/v1/embeddings", json=TEXT).status_code == 503
        for model in ("tiny-llama", "bert"):
            client.post(f"/pause?model={model}", json={"paused": False})
        assert all(each.result(PATIENCE) for each in asked)
        assert server.process.wait(PATIENCE) == 0
        assert not any(map(psutil.Process.is_running, children))


@pytest.mark.parametrize(
    ("companion", "message"),
    [
        ("--quantization int8", "has no model before its options"),
        ("{encoder} --port 1", "No such option: --port"),
        ("{decoder}", "Two models would be served as 'tiny-llama'; give one of them another name"),
        ("{encoder} --kv-cache-memory 1GiB", "--kv-cache-memory is of no use with an encoder"),
        ("{decoder} --served-model-name b --kv-cache-memory 900GiB", "--kv-cache-memory 900.00 GiB does not fit"),
    ],
)
def test_what_cannot_be_served_is_refused_before_anything_is_loaded(
    served_checkpoint: Path, encoder: Path, companion: str, message: str
) -> None:
    with pytest.raises(StartupError, match=message):
        explained(served_checkpoint, companion.format(encoder=encoder, decoder=served_checkpoint))


def test_settings_of_all_are_explained(served_checkpoint: Path, encoder: Path) -> None:
    reasons = explained(served_checkpoint, f"{encoder} --dtype float32")
    assert {"tiny-llama: dtype", "tiny-llama: max queued requests", "max connections"} <= reasons.keys()
    assert reasons["tiny-bert: dtype"].why == "as asked"
    assert reasons["memory"].value.startswith("tiny-llama ")


def test_simulated_devices_serve_one_model(served_checkpoint: Path, encoder: Path) -> None:
    with pytest.raises(ConfigurationError, match="--with and --simulate do not go together"):
        explained(served_checkpoint, str(encoder), simulate="h100")


def explained(first: Path, companion: str, **options: str) -> dict[str, Reason]:
    """The settings of a server with a companion, by name."""
    serving = ServeOptions(data_dir="off", beside=companions([companion]))
    engine = EngineOptions.of(str(first), **options)
    return {reason.setting: reason for reason in explain_server(engine, serving, Access())}
