"""The comparison with peers: who runs, what is kept of a child, what the page says, and how a run goes on."""

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import compare_peers
import pytest
from comparison.children import Outcome, run_child
from comparison.contenders import (
    CONTENDERS,
    LARGE,
    MACHINE,
    TOY,
    TRAINED,
    Job,
    Plan,
    Workload,
    chosen_names,
    plan_round,
    running,
)
from comparison.page import TRAINED_HEADING, page
from comparison.record import Machine, Record, Run, best, ratio

from support.waiting import PATIENCE

EVERYBODY = [contender.name for contender in CONTENDERS]
NOBODY = {"penstock": "/ours", "vllm": None, "llama-cpp": None, "openvino": None, "transformers": None}
HERE = Machine("A processor", 2, 23.5, "one boot")


def figures(bs1: float, bs32: float, prefill: float = 100.0) -> dict[str, Any]:
    return {
        "ready_seconds": 2.5,
        "prefill": prefill,
        "decode": {"1": bs1, "32": bs32},
        "weight_bytes": 500_000_000,
        "versions": {"python": "3.11"},
        "settings": {"threads": 2, "quantize_head": None},
    }


def record_of(*runs: Run, missing: dict[str, str] | None = None) -> Record:
    return Record(HERE, Workload(batch_sizes=(1, 32)), list(runs), missing or {})


def rows_of(text: str, heading: str) -> dict[str, list[str]]:
    """Cells of the first table after a heading, by their row's name."""
    lines = text.split(f"## {heading}\n")[1].split("\n## ")[0].splitlines()
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if line.startswith("|")]
    return {row[0]: row[1:] for row in rows}


class TestPlan:
    def test_only_what_has_environment_and_model_runs(self, tmp_path: Path) -> None:
        for name in ("bf16", "w8a8"):
            (tmp_path / name).mkdir()
        plan = plan_round(EVERYBODY, {**NOBODY, "vllm": "/theirs", "openvino": "/ov"}, tmp_path, Workload())
        ours = ["penstock-bf16", "penstock-int8", "penstock-int4", "penstock-int4-head8"]
        assert [job.contender for job in plan.jobs] == [MACHINE, *ours, "vllm-bf16", "vllm-w8a8"]
        assert plan.missing["llama-cpp-q4_0/large"] == "no environment given: --llama-cpp PYTHON"
        assert "ov8" in plan.missing["openvino-int8/large"] and "export_openvino" in plan.missing["openvino-int8/large"]
        assert "make_checkpoints.py OUT toy" in plan.missing["vllm-bf16/toy"]

    def test_commands_carry_the_workload(self, tmp_path: Path) -> None:
        for name in ("bf16", "toy"):
            (tmp_path / name).mkdir()
        plan = plan_round(["penstock-int4-head8"], NOBODY, tmp_path, Workload(decode_steps=7, runs=3, threads=4))
        _, large, toy = plan.jobs
        assert (large.checkpoint, toy.checkpoint) == (LARGE, TOY)
        assert large.command[:3] == ("/ours", large.command[1], str(tmp_path / "bf16"))
        text = " ".join(large.command)
        assert "--output-len 7 --runs 3 --threads 4 --batch-sizes 1,4,16,32" in text
        assert text.endswith("--quantization int4 --quantize-head int8")
        assert plan.missing["penstock-int4/large"] == "left out by --contenders"

    def test_every_driver_is_there(self) -> None:
        assert all(contender.driver.exists() for contender in CONTENDERS)

    def test_names(self) -> None:
        assert chosen_names(None) == EVERYBODY
        assert chosen_names("vllm-w8a8, penstock-int4") == ["vllm-w8a8", "penstock-int4"]
        for text in ("vllm", ""):
            with pytest.raises(SystemExit, match="vllm-w8a8"):
                chosen_names(text)


class TestOptions:
    def test_interpreters_and_quick(self) -> None:
        arguments = compare_peers.parse(["--models", "m", "--llama-cpp", "/l/python", "--quick"])
        found = compare_peers.interpreters(arguments)
        assert found["llama-cpp"] == "/l/python" and found["vllm"] is None and found["penstock"] == sys.executable
        assert (arguments.rounds, arguments.runs, arguments.decode_steps) == (1, 1, compare_peers.QUICK_STEPS)

    def test_nonsense_is_refused(self, capsys: pytest.CaptureFixture[str]) -> None:
        with pytest.raises(SystemExit):
            compare_peers.parse(["--models", "m", "--rounds", "0"])
        assert "--rounds" in capsys.readouterr().err


class TestChildren:
    @pytest.fixture
    def run(self) -> Callable[..., Outcome]:
        return lambda text, limit=PATIENCE: run_child([sys.executable, "-c", text], limit)

    def test_the_last_object_counts(self, run: Callable[..., Outcome]) -> None:
        outcome = run("print('log'); print('{broken'); print('{\"a\": 1}'); print('bye')")
        assert outcome.figures == {"a": 1} and outcome.error is None and outcome.seconds > 0

    def test_a_failure_is_its_last_line(self, run: Callable[..., Outcome]) -> None:
        outcome = run("print('{\"a\": 1}'); raise SystemExit('no such model')")
        assert outcome.figures is None
        assert outcome.error == "ended with status 1: no such model"

    def test_silence_is_an_error(self, run: Callable[..., Outcome]) -> None:
        assert run("pass").error == "printed no figures; its last line: it printed nothing"

    def test_a_missing_interpreter(self) -> None:
        outcome = run_child(["/nowhere/python"], 1.0)
        assert outcome.error == "/nowhere/python could not be started: No such file or directory"

    def test_the_limit_ends_a_child_and_all_it_started(self, run: Callable[..., Outcome], tmp_path: Path) -> None:
        mark = tmp_path / "mark"
        grandchild = f"import time; time.sleep(1); open({str(mark)!r}, 'w')"
        outcome = run(
            f"import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', {grandchild!r}]);"
            "print('started', file=sys.stderr, flush=True); time.sleep(60)",
            0.5,
        )
        assert outcome.error is not None and outcome.error.startswith("not done after")
        run("import time; time.sleep(1.5)")
        assert not mark.exists()

    def test_children_know_when_they_were_launched(self, run: Callable[..., Outcome]) -> None:
        outcome = run(
            "import os, time; print('{\"a\": %f}' % (time.monotonic() - float(os.environ['BENCHMARK_LAUNCHED'])))"
        )
        assert outcome.figures is not None and outcome.figures["a"] > 0


class TestFigures:
    def test_ratios_are_within_rounds(self) -> None:
        found = ratio({0: 10.0, 1: 30.0, 2: 50.0}, {0: 5.0, 1: 10.0, 3: 1.0})
        assert found is not None
        assert (found.median, found.least, found.greatest, found.pairs) == (2.5, 2.0, 3.0, 2)
        assert ratio({0: 1.0}, {1: 1.0}) is None and ratio({}, {}) is None

    def test_the_best_has_the_largest_median(self) -> None:
        once, steady = ("once", {0: 100.0, 1: 1.0, 2: 1.0}), ("steady", {0: 5.0, 1: 5.0, 2: 5.0})
        assert best([("absent", {}), once, steady]) == steady
        assert best([("absent", {})]) is None


class TestPage:
    def test_cells_are_medians_and_the_missing_are_empty(self) -> None:
        runs = [
            Run(number, "penstock-int4", LARGE, 1.0, figures(speed, 200)) for number, speed in enumerate((10, 30, 20))
        ]
        text = page(record_of(*runs, missing={"vllm-w8a8/large": "no environment given: --vllm PYTHON"}))
        rows = rows_of(text, "1.24B parameters, tokens per second")
        column = running(LARGE).index("penstock-int4")
        assert rows["decode, batch 1"][column] == "20"
        assert rows["decode, batch 32"][column] == "200"
        assert rows["prefill 512"][column + 1 :] == [""] * (len(running(LARGE)) - column - 1)
        assert "- vllm-w8a8 is missing: no environment given: --vllm PYTHON" in text
        assert "Rounds: 3." in text
        assert "ceilings were not measured" in text and rows["of the roofline at batch 1"][column] == ""

    def test_ratios_name_the_best_peer(self) -> None:
        text = page(
            record_of(
                Run(0, "penstock-int4", LARGE, 1.0, figures(60, 300)),
                Run(1, "penstock-int4", LARGE, 1.0, figures(30, 300)),
                Run(0, "llama-cpp-q4_0", LARGE, 1.0, figures(60, 100)),
                Run(1, "llama-cpp-q4_0", LARGE, 1.0, figures(40, 100)),
                Run(0, "vllm-w8a8", LARGE, 1.0, figures(20, 150)),
                Run(1, "vllm-w8a8", LARGE, 1.0, None, "killed"),
            )
        )
        rows = rows_of(text, "Penstock int4 against the best mode of all peers")
        assert rows["decode, batch 1"] == ["llama-cpp-q4_0", "50", "45", "0.88", "0.75", "1.00", "2"]
        assert rows["decode, batch 32"] == ["vllm-w8a8", "150", "300", "2.00", "2.00", "2.00", "1"]
        assert "- vllm-w8a8 failed in round 2: killed" in text
        empty = rows_of(text, "Penstock bf16 against vLLM bf16")["decode, batch 1"]
        assert empty == [""] * 7

    def test_a_trained_model_has_a_table_of_its_own(self) -> None:
        runs = (Run(0, "penstock-trained", TRAINED, 1.0, figures(60, 300)),)
        text = page(record_of(*runs, Run(0, "llama-cpp-trained", TRAINED, 1.0, figures(40, 100))))
        rows = rows_of(text, TRAINED_HEADING)
        assert rows["decode, batch 1"] == ["llama-cpp-trained", "40", "60", "1.50", "1.50", "1.50", "1"]
        assert "--llama-cpp PYTHON --rounds 1" in text and "--contenders" not in text
        assert rows_of(text, "Versions and settings")["penstock-trained"] == ["python 3.11", "threads 2"]

    def test_contenders_that_were_left_out_have_no_columns_and_no_tables(self, tmp_path: Path) -> None:
        names = ["penstock-int4", "vllm-bf16"]
        missing = plan_round(names, NOBODY, tmp_path, Workload()).missing
        text = page(record_of(Run(0, "penstock-int4", LARGE, 1.0, figures(60, 300)), missing=missing))
        assert list(rows_of(text, "1.24B parameters, tokens per second")[""]) == names
        assert list(rows_of(text, "Toy model, milliseconds a step")[""]) == names
        assert "best mode of all peers" in text and "on one Q4_0 file" not in text and TRAINED_HEADING not in text
        assert "--contenders penstock-int4,vllm-bf16\n" in text
        assert "- vllm-bf16 is missing: no environment given" in text and "w8a8" not in text

    def test_roofline_uses_the_rounds_own_bandwidth(self) -> None:
        ceilings = {"read": 20.0, "arithmetic": {"int8": 900.0, "float32": 0.0}}
        text = page(
            record_of(
                Run(0, MACHINE, LARGE, 1.0, ceilings),
                Run(1, MACHINE, LARGE, 1.0, {**ceilings, "read": 40.0}),
                Run(1, "penstock-int4", LARGE, 1.0, figures(40, 300)),
            )
        )
        row = rows_of(text, "1.24B parameters, tokens per second")["of the roofline at batch 1"]
        assert row[running(LARGE).index("penstock-int4")] == "50%"
        assert "memory reads 30.0 GB/s (20.0 to 40.0); in registers int8 900 GOP/s." in text
        assert "Rounds: 1." in text

    def test_toy_steps_and_versions(self) -> None:
        text = page(record_of(Run(0, "penstock-int8", TOY, 1.0, figures(2000, 16000))))
        rows = rows_of(text, "Toy model, milliseconds a step")
        assert rows["batch 1"] == ["", "0.50", "", "", ""] and rows["batch 32"] == ["", "2.00", "", "", ""]
        assert rows_of(text, "Versions and settings")["penstock-int8"] == ["python 3.11", "threads 2"]

    def test_the_command_names_the_peers_that_ran(self) -> None:
        runs = [Run(0, name, LARGE, 1.0, figures(1, 2)) for name in ("openvino-int4", "openvino-int8", "vllm-bf16")]
        assert "--models OUT --vllm PYTHON --openvino PYTHON --rounds 1" in page(record_of(*runs))


class TestResuming:
    @pytest.fixture
    def calls(self, tmp_path: Path) -> Path:
        return tmp_path / "calls"

    @pytest.fixture
    def plan(self, tmp_path: Path, calls: Path) -> Plan:
        """Two contenders that note their runs; the second one fails while there is a file named "broken"."""
        script = tmp_path / "driver.py"
        script.write_text(
            "import pathlib, sys\n"
            f"with open({str(calls)!r}, 'a') as file: file.write(sys.argv[1] + '\\n')\n"
            f"if sys.argv[1] == 'vllm-bf16' and pathlib.Path({str(tmp_path / 'broken')!r}).exists():\n"
            "    sys.exit('out of order')\n"
            f"print('''{json.dumps(figures(10, 20))}''')\n"
        )
        return Plan([Job(name, LARGE, (sys.executable, str(script), name)) for name in ("penstock-int4", "vllm-bf16")])

    @pytest.fixture
    def go(self, tmp_path: Path, plan: Plan) -> Callable[..., Record]:
        def go(rounds: int, resume: bool, workload: Workload | None = None) -> Record:
            write = tmp_path / "peers.md"
            arguments = SimpleNamespace(rounds=rounds, resume=resume, time_limit=60.0, write=write)
            workload, path = workload or Workload(), write.with_suffix(".json")
            record = compare_peers.open_record(arguments, path, workload)  # type: ignore[arg-type]
            compare_peers.run_rounds(record, plan, workload, arguments, path)  # type: ignore[arg-type]
            assert Record.load(path) == record
            return record

        return go

    def test_rounds_alternate_and_go_on(self, go: Callable[..., Record], calls: Path) -> None:
        go(1, False)
        assert go(2, True).rounds() == 2
        assert calls.read_text().split() == ["penstock-int4", "vllm-bf16"] * 2
        go(2, True)
        assert len(calls.read_text().split()) == 4, "nothing is left to do"

    def test_what_failed_is_kept_and_tried_again(self, go: Callable[..., Record], tmp_path: Path) -> None:
        (tmp_path / "broken").touch()
        record = go(1, False)
        assert [run.error for run in record.runs] == [None, "ended with status 1: out of order"]
        assert "failed in round 1: ended with status 1: out of order" in (tmp_path / "peers.md").read_text()
        (tmp_path / "broken").unlink()
        record = go(1, True)
        assert [(run.contender, run.error) for run in record.runs] == [("penstock-int4", None), ("vllm-bf16", None)]

    def test_another_workload_is_refused(self, go: Callable[..., Record]) -> None:
        go(1, False)
        with pytest.raises(SystemExit, match="decode_steps=64"):
            go(2, True, Workload(decode_steps=8))

    def test_another_machine_is_refused(self, go: Callable[..., Record], monkeypatch: pytest.MonkeyPatch) -> None:
        go(1, False)
        other = replace(Machine.here(), boot="another boot")
        monkeypatch.setattr(Machine, "here", classmethod(lambda cls: other))
        with pytest.raises(SystemExit, match="another machine"):
            go(2, True)

    def test_nothing_to_go_on_with(self, go: Callable[..., Record]) -> None:
        with pytest.raises(SystemExit, match="no .*peers.json"):
            go(1, True)
