"""`penstock doctor` as a user meets it: reports on this machine, on a model, and on servers that tell how they are."""

import contextlib
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from penstock.cli import doctor
from penstock.cli.main import main
from penstock.doctor import probe
from penstock.kernels.cpu.native import OBSTACLE
from support.checkpoints import make
from support.http_server import free_port, running
from support.observations import stats, steps, waits
from support.waiting import PATIENCE

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Exit status and what was printed, of a command in this process."""
    monkeypatch.delenv("PENSTOCK_API_KEY", raising=False)
    monkeypatch.setattr(probe, "_SECONDS", 0.05)

    def call(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["penstock", "doctor", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        printed = capsys.readouterr()
        assert isinstance(ended.value.code, int)
        return ended.value.code, printed.out, printed.err

    return call


@contextlib.contextmanager
def telling(*answers: bytes | int, key: str | None = None) -> Iterator[str]:
    """A server whose /v1/stats gives these answers in turn, bodies or statuses, the last one again and again."""
    left = list(answers)

    async def tell(request: Request) -> Response:
        if key is not None and request.headers.get("authorization") != f"Bearer {key}":
            return Response(b'{"error": {"message": "Who are you?"}}', 401)
        found = left.pop(0) if len(left) > 1 else left[0]
        return Response(status_code=found) if isinstance(found, int) else Response(found)

    with running(Starlette(routes=[Route("/v1/stats", tell)])) as base:
        yield base


def between(**changes: Any) -> tuple[bytes, bytes]:
    """Two answers, ten seconds apart, between which something happened."""
    before = stats(100.0, 40, type(steps())(), 20.0)
    return msgspec.json.encode(before), msgspec.json.encode(
        stats(110.0, 80, changes.pop("steps", steps()), 23.0, **changes)
    )


QUEUE = between(steps=waits("rows", 8.0))


def test_this_machine_is_examined(run: Run) -> None:
    status, out, err = run("--threads", "1")
    assert status == (0 if OBSTACLE is None else 1), err
    for subject in ("processors", "memory", "kernels", "GPU", "packaging"):
        assert subject in out
    assert "/proc/meminfo" in out, "each figure comes with where it was read"


def test_a_report_of_the_machine_is_json_with_all_figures(run: Run) -> None:
    _, out, _ = run("--json", "--threads", "1")
    report = msgspec.json.decode(out, type=doctor.MachineReport)
    assert report.machine.processor.threads == 1 and report.model is None
    assert report.machine.software["Penstock"]
    if OBSTACLE is None:
        assert report.machine.kernels.ceilings is not None and report.machine.kernels.ceilings.read > 0


def test_a_model_is_told_what_it_reaches_here(run: Run, tmp_path: Path) -> None:
    model = make("llama", tmp_path / "tiny")
    status, out, _ = run(str(model), "--json", "--max-num-seqs", "4", "--dtype", "float32")
    report = msgspec.json.decode(out, type=doctor.MachineReport)
    subjects = {finding.subject for finding in report.model_findings}
    assert "room for sequences" in subjects and report.model == str(model)
    if OBSTACLE is None:
        assert status == 0 and {"decoding at best", "prompts at best"} <= subjects
    assert any("at most 4 run at a time" in finding.meaning for finding in report.model_findings)


def test_of_a_gpu_the_processors_speed_is_not_told(run: Run, tmp_path: Path) -> None:
    model = make("llama", tmp_path / "tiny")
    status, out, _ = run(str(model), "--json", "--device", "cuda", "--dtype", "float32")
    found = {each.subject for each in msgspec.json.decode(out, type=doctor.MachineReport).model_findings}
    assert status == 0 and {"speed at best", "room for sequences"} <= found
    assert not {"decoding at best", "prompts at best"} & found


def test_a_model_that_does_not_fit_is_a_problem(run: Run, tmp_path: Path) -> None:
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 128256,
              "hidden_size": 16384, "intermediate_size": 53248, "num_hidden_layers": 126, "num_attention_heads": 128,
              "num_key_value_heads": 8, "max_position_embeddings": 131072, "rms_norm_eps": 1e-5,
              "rope_theta": 500000.0, "torch_dtype": "bfloat16", "tie_word_embeddings": False}  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    status, out, _ = run(str(tmp_path), "--load-format", "dummy", "--json")
    report = msgspec.json.decode(out, type=doctor.MachineReport)
    (finding,) = report.model_findings
    assert status == 1 and finding.level == "problem" and "available" in finding.meaning


@pytest.mark.parametrize(
    "arguments, says",
    [
        (("--seconds", "3"), "--url"),
        (("--compare", "before.json"), "--url"),
        (("--quantization", "int4"), "Without MODEL"),
        (("--max-num-seqs", "4"), "Without MODEL"),
        (("--threads", "0"), "--threads is 0"),
        (("--instruction-set", "sse"), "sse"),
        (("haiku", "--url", "http://127.0.0.1:1"), "leave out MODEL"),
        (("--url", "http://127.0.0.1:1", "--threads", "2"), "leave out MODEL"),
        (("--url", "nowhere at all"), "no address of a server"),
        (("--url", "http://127.0.0.1:1", "--seconds", "0.1"), "--seconds"),
        (("--url", "http://127.0.0.1:1", "--compare", "no-such-file.json"), "cannot be read"),
        (("/no/such/model",), "/no/such/model"),
    ],
)
def test_what_has_no_meaning_is_refused_in_one_sentence(run: Run, arguments: tuple[str, ...], says: str) -> None:
    status, out, err = run(*arguments)
    assert status == 2 and out == "" and "Traceback" not in err
    assert says in err and err.startswith("penstock: ")


def test_a_server_with_a_queue_is_diagnosed(run: Run) -> None:
    with telling(*QUEUE) as base:
        status, out, err = run("--url", base, "--seconds", "0.5")
    assert status == 0, err
    assert "Bottleneck: rows (L4b" in out
    assert "Raise --max-num-seqs from 16 to 32" in out
    for number in range(1, 12):
        assert f"│ {number} " in out, "every row of the sheet is there"
    assert "steps.held: rows" in out


def test_a_report_is_compared_with_an_earlier_one(run: Run, tmp_path: Path) -> None:
    with telling(*QUEUE) as base:
        _, out, _ = run("--url", base, "--seconds", "0.5", "--json")
    before = tmp_path / "before.json"
    before.write_text(out)
    with telling(*between(steps=steps(operations=int(700e9)))) as base:
        _, text, _ = run("--url", base, "--seconds", "0.5", "--compare", str(before))
        assert "The bottleneck has moved from rows to arithmetic. Rows that no longer apply: 1." in text
    with telling(*QUEUE) as base:
        _, out, _ = run("--url", base, "--seconds", "0.5", "--compare", str(before), "--json")
    report = msgspec.json.decode(out, type=doctor.ServerReport)
    assert report.comparison is not None and not report.comparison.moved
    assert report.diagnosis.bottleneck.resource == "rows"


def test_another_file_is_no_report(run: Run, tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text('{"machine": 3}')
    status, _, err = run("--url", "http://127.0.0.1:1", "--compare", str(tmp_path / "other.json"))
    assert status == 2 and "is no report" in err


def test_an_engine_that_is_down_is_a_problem(run: Run) -> None:
    with telling(*between(ready=False, why_not="The engine is starting.")) as base:
        status, out, _ = run("--url", base, "--seconds", "0.5")
    assert status == 1 and "The engine is not ready: The engine is starting." in out


@pytest.mark.parametrize(
    "answers, says",
    [
        ((404,), "HTTP 404"),
        ((b'{"version": 3}',), "another release"),
        ((b"<html>",), "another release"),
        ((QUEUE[1], QUEUE[0]), "started again"),
    ],
)
def test_what_is_no_server_of_ours_is_told(run: Run, answers: tuple[bytes | int, ...], says: str) -> None:
    with telling(*answers) as base:
        status, _, err = run("--url", base, "--seconds", "0.5")
    assert status == 2 and says in err


def test_nobody_there_is_told(run: Run) -> None:
    status, _, err = run("--url", f"http://127.0.0.1:{free_port()}")
    assert status == 2 and "the connection was refused" in err


def test_a_key_is_given_where_one_is_wanted(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    with telling(*QUEUE, key="secret") as base:
        status, _, err = run("--url", base, "--seconds", "0.5")
        assert status == 2 and "Who are you?" in err and "PENSTOCK_API_KEY" in err
        monkeypatch.setenv("PENSTOCK_API_KEY", "secret")
        status, out, _ = run("--url", base, "--seconds", "0.5")
        assert status == 0 and "secret" not in out


def test_a_server_is_asked_without_torch() -> None:
    code = "import sys; sys.modules['torch'] = None; from penstock.cli.main import main; main()"
    with telling(*QUEUE) as base:
        command = [sys.executable, "-c", code, "doctor", "--url", base, "--seconds", "0.5", "--json"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["diagnosis"]["bottleneck"]["resource"] == "rows"
