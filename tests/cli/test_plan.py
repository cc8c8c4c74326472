"""`penstock plan` as users call it."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from jsonschema import Draft202012Validator
from typer.testing import CliRunner

from penstock.cli.main import app
from penstock.core.errors import PenstockError
from penstock.planning.plan import Plan

ROOT = Path(__file__).parents[2]
CONFIG = json.loads((ROOT / "benchmarks" / "public_models.json").read_text())["Llama-3.1-70B"]


GRACE = ["--on", "grace", "haiku"]
ROLES = ["--prefill-replicas", "1", "--decode-replicas", "1"]


@pytest.fixture
def config(tmp_path: Path) -> str:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIG))
    return str(path)


def test_json_for_programs(config: str) -> None:
    arguments = ["plan", "--model-config", config, "--on", "h100-sxm", "--tensor-parallel-size", "8"]
    arguments += ["--dtype", "fp8", "--kv-cache-dtype", "fp8"]
    arguments += ["--input-len", "1024", "--output-len", "1024", "--concurrency", "64", "--json", "-"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    plan = json.loads(result.stdout)
    assert plan["memory"]["weights_bytes"] == pytest.approx(72.7e9, rel=0.01)
    assert plan["memory"]["kv_bytes_per_token"] == 163_840
    assert plan["memory"]["max_concurrency"] > 1000
    for figure in ("ttft_ms", "tpot_ms", "output_tokens_per_second"):
        told = plan["estimate"][figure]
        assert told["low"] < told["value"] < told["high"] and told["basis"]


def test_plans_are_what_their_schema_says(config: str) -> None:
    """`docs/plan.schema.json` is what msgspec makes of `Plan`."""
    schema = json.loads((ROOT / "docs" / "plan.schema.json").read_text())
    assert schema == msgspec.json.schema(Plan)
    validator = Draft202012Validator(schema)
    for more in (
        [],
        ["--price", "2", "--api-price", "1,2", "--rate", "5", "--slo", "tpot=30ms"],
        ["--api-price", "gpt-5-mini", "--cached-len", "100", "--buy", "25000,years=3", "--operations", "10"],
        ["--api-price", "0.01,0.01"],
        ["--dtype", "float32"],
        ["--kv-disk", "20GiB,read=2GB/s,write=500MB/s"],
        [*ROLES, "--rate", "1", "--dtype", "fp8"],
    ):
        result = CliRunner().invoke(app, ["plan", "--model-config", config, "--on", "4x h100", "--json", "-", *more])
        validator.validate(json.loads(result.stdout))


def test_devices_are_those_that_share_each_layer_without_on_saying_more(config: str) -> None:
    """`--on h100-sxm --tensor-parallel-size 8` is eight of them."""
    arguments = ["plan", "--model-config", config, "--on", "h100-sxm", "--tensor-parallel-size", "8", "--json", "-"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["machine"] == "8 x H100 SXM"


def test_a_bundled_model_in_words() -> None:
    result = CliRunner().invoke(
        app,
        ["plan", "haiku", "--on", "l4", "--price", "0.7", "--slo", "tpot=5ms", "--rate", "3", "--api-price", "0.1,0.3"],
    )
    assert result.exit_code == 0, result.output
    for told in (
        "on L4",
        "left for the cache",
        "first token",
        "for output tokens",
        "less than an API",
        "1 replica,",
        "within",
        "keep tpot=5ms",
    ):
        assert told in result.stdout


def test_the_list_has_every_device() -> None:
    from penstock.planning.hardware import DEVICES

    result = CliRunner().invoke(app, ["plan", "--list"])
    assert result.exit_code == 0
    assert all(device.name in result.stdout for device in DEVICES)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "--on is missing"),
        (["--on", "h100", "haiku", "--cached-len", "2000"], "--cached-len must be less than --input-len"),
        (["--on", "h100", "haiku", "--dtype", "fp3"], "--dtype 'fp3' is not a format"),
        (["--on", "h1000", "haiku"], "Near it are H100 SXM"),
        (["--on", "h100", "haiku", "--rate", "0"], "--rate 0 is no number of requests a second"),
        (["--on", "h100", "haiku", "--rate", "nan"], "--rate nan is no number"),
        (["--on", "h100", "haiku", "--rate", "inf"], "--rate inf is no number"),
        (["--on", "h100", "haiku", "--static", "--rate", "1"], "which a batch that begins together has not"),
        (["--on", "h100", "haiku", "--slo", "e2e=3s"], "--slo of a plan has ttft and tpot"),
        (["--on", "m3-ultra", "haiku", "--tensor-parallel-size", "2"], "has no link to others"),
        (["--on", "epyc-9654", "haiku"], "has the memory that is put into it"),
        (["--on", "h100", "haiku", "--tensor-parallel-size", "1000000000000"], "cannot share each layer"),
        (["--on", "h100", "haiku", "--memory", "90GB"], "H100 SXM has 80 GB; leave --memory out"),
        (["--on", "h100", "haiku", "--context-parallel-size", "2"], "is of processes that share a processor"),
        ([*GRACE, "--data-parallel-size", "2"], "--data-parallel-size is of devices; on a processor"),
        ([*GRACE, "--tensor-parallel-size", "2", "--context-parallel-size", "2"], "does not go together with"),
        ([*GRACE, "--tensor-parallel-size", "9"], "--tensor-parallel-size is 9, but the model has"),
        ([*GRACE, "--tensor-parallel-size", "2", "--buy", "9000", "--price", "1"], "--buy is of whole devices"),
        (["--on", "h100", "haiku", "--prefill-replicas", "1"], "--prefill-replicas needs --decode-replicas"),
        (["--on", "h100", "haiku", "--decode-replicas", "1"], "--decode-replicas needs --prefill-replicas"),
        (["--on", "h100", "haiku", "--kv-transfer", "1GB/s"], "--kv-transfer is of replicas with roles"),
        (["--on", "h100", "haiku", *ROLES], "say how many requests come a second"),
        (["--on", "3xh100", "haiku", *ROLES], "3 devices cannot be shared out among 2 replicas with roles"),
        (["--on", "2xh100", "haiku", *ROLES, "--tensor-parallel-size", "2"], "2 replicas of 2 devices have 4"),
        (["--on", "m3-max", "haiku", *ROLES, "--rate", "1"], "M3 Max has no link that is known"),
        (["--on", "h100", "haiku", *ROLES, "--rate", "1", "--kv-transfer", "fast"], "--kv-transfer 'fast' is no rate"),
        ([*GRACE, *ROLES, "--rate", "1", "--tensor-parallel-size", "2"], "do not go together with roles here"),
        (["--on", "h100", "haiku", "--json", "/nowhere/plan.json"], "there is no directory /nowhere"),
        (["--on", "h100", "--model-config", "/nowhere.json"], "--model-config /nowhere.json is no file"),
        (["--on", "h100"], "Give either MODEL or --model-config"),
        (["--on", "h100", "haiku", "--slo", "fast"], "--slo: 'fast' is no limit"),
    ],
)
def test_what_cannot_be_planned_is_one_sentence(arguments: list[str], told: str) -> None:
    result = CliRunner().invoke(app, ["plan", *arguments])
    assert isinstance(result.exception, PenstockError)
    assert told in result.exception.message


@pytest.mark.parametrize("size", ["tensor", "pipeline", "context"])
def test_ranks_of_a_processor_are_told_beside_threads(size: str) -> None:
    arguments = ["plan", "haiku", *GRACE[:2], f"--{size}-parallel-size", "2"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    text = " ".join(result.stdout.split())
    for told in (
        "on 2 ranks on Grace",
        "memory of a rank",
        "One process with all threads: first token",
        "Take one process: 2 ranks on the same cores make",
        "of ranks, on a prior: what two ranks took beside two threads on another machine",
    ):
        assert told in text
    plan = json.loads(CliRunner().invoke(app, [*arguments, "--json", "-"]).stdout)
    assert plan["memory"]["device_bytes"] == 240e9 and plan["threads"]["output"] < 1


def test_a_price_is_that_of_the_processor_which_ranks_share() -> None:
    arguments = ["plan", "haiku", *GRACE[:2], "--tensor-parallel-size", "2", "--price", "3"]
    text = " ".join(CliRunner().invoke(app, arguments).stdout.split())
    assert "Money, at $3.00 an hour for one Grace" in text and "a month $2,190 for 2 ranks" in text


def test_memory_that_is_put_into_a_processor_is_said() -> None:
    arguments = ["plan", "haiku", "--on", "epyc-9654", "--memory", "64GiB", "--json", "-"]
    plan = json.loads(CliRunner().invoke(app, arguments).stdout)
    assert plan["memory"]["device_bytes"] == 64 << 30 and plan["threads"] is None


def test_roles_are_told_beside_as_many_replicas_without(config: str) -> None:
    arguments = ["plan", "--model-config", config, "--on", "4x h100", "--dtype", "fp8", *ROLES]
    arguments += ["--input-len", "8000", "--output-len", "400", "--rate", "0.8", "--kv-transfer", "50GB/s"]
    plan = json.loads(CliRunner().invoke(app, [*arguments, "--json", "-"]).stdout)
    # Each of the replicas has half of the devices.
    told = plan["roles"]
    assert plan["split"] == 2 and plan["machine"].startswith("4 x ")
    assert told["helps"] and told["handed_over"] > 50 and told["transfer"] == 50e9
    assert told["apart"]["itl_p99_ms"] < 0.9 * told["alike"]["itl_p99_ms"]
    assert told["advice"].startswith("Roles help: the p99 of gaps between tokens is")


def test_short_prompts_need_no_roles(config: str) -> None:
    arguments = ["plan", "--model-config", config, "--on", "4x h100", "--dtype", "fp8", *ROLES]
    text = " ".join(CliRunner().invoke(app, [*arguments, "--input-len", "100", "--rate", "1"]).stdout.split())
    assert "1 for prompts, 1 to decode" in text and "2 for both" in text
    assert "Roles do not help: the p99 of gaps" in text and "0% of the prompts were handed over" in text


def test_a_refusal_has_no_traceback() -> None:
    command = [sys.executable, "-c", "from penstock.cli.main import main; main()", "plan", "haiku", "--on", "h1000"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 2 and result.stderr.startswith("penstock: --on 'h1000' is no device")
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("fields", "weights"),
    [
        ({}, 16.06e9),
        ({"torch_dtype": "float32"}, 32.1e9),
        ({"quantization_config": {"quant_method": "fp8"}}, 9.1e9),
        ({"quantization_config": {"quant_method": "gptq", "bits": 4}}, 5.7e9),
        ({"quantization_config": {"quant_method": "gptq", "bits": 8}}, 9.1e9),
        ({"quantization_config": {"quant_method": "gptq", "bits": 3}}, "quantization 'gptq' is not known here"),
        ({"quantization_config": {"bits": 4}}, "quantization 'unnamed' is not known here"),
        ({"torch_dtype": "float3"}, "torch_dtype 'float3' is not a format"),
    ],
)
@pytest.mark.parametrize("nested", [False, True])
def test_formats_that_a_config_declares(
    tmp_path: Path, fields: dict[str, Any], weights: float | str, nested: bool
) -> None:
    shape = json.loads((ROOT / "benchmarks" / "public_models.json").read_text())["Llama-3.1-8B"] | fields
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"text_config": shape} if nested else shape))
    result = CliRunner().invoke(app, ["plan", "--model-config", str(file), "--on", "h100", "--json", "-"])
    if isinstance(weights, str):
        assert weights in str(result.exception)
    else:
        assert json.loads(result.stdout)["memory"]["weights_bytes"] == pytest.approx(weights, rel=0.01)


def test_no_torch_is_needed() -> None:
    code = "import sys; sys.modules['torch'] = None; from penstock.cli.main import main; main()"
    command = [sys.executable, "-c", code, "plan", "haiku", "--on", "h100"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


def test_a_calibration_is_what_estimates_stand_on(config: str, tmp_path: Path) -> None:
    runs = [
        {"input_len": 1024, "output_len": 128, "concurrency": size, "tpot_ms": 40.0 + size} for size in (1, 4, 16, 64)
    ]
    file = tmp_path / "runs.json"
    file.write_text(json.dumps(runs))
    arguments = ["plan", "--model-config", config, "--on", "8x a100", "--calibration", str(file), "--json", "-"]
    result = CliRunner().invoke(app, [*arguments, "--input-len", "1024", "--output-len", "128", "--concurrency", "16"])
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)["estimate"]["tpot_ms"]
    assert told["value"] == pytest.approx(56, rel=0.2) and told["basis"].startswith("a calibration of 4 points")
    for text, wrong in (
        ("[]", "takes 4 points"),
        ("{", "is no list of measured runs"),
        ('[{"tokens": 1}]', "unknown field"),
    ):
        file.write_text(text)
        assert wrong in str(CliRunner().invoke(app, arguments).exception)


def test_of_many_layouts_the_best_are_shown(config: str) -> None:
    arguments = ["plan", "--model-config", config, "--on", "64x h100"]
    shown = CliRunner().invoke(app, arguments).stdout
    told = json.loads(CliRunner().invoke(app, [*arguments, "--json", "-"]).stdout)["layouts"]
    assert len(told) == 29 and told[0]["best"]
    assert "17 others yield less, or do not fit; --json has them all." in shown.replace("\n", " ")


def test_a_disk_beside_the_pool(config: str) -> None:
    asked = ["plan", "--model-config", config, "--on", "grace", "--kv-disk", "20GiB,write=500MB/s,read=2GB/s"]
    told = " ".join(CliRunner().invoke(app, asked).stdout.split())
    assert "KiB on the disk: it holds" in told and "read, ms" in told and "Copies between a GPU's memory" not in told
    asked[4] = "h100"
    assert "Copies between a GPU's memory" in " ".join(CliRunner().invoke(app, asked).stdout.split())


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("20GiB", "does not say how fast the disk is"),
        ("20GiB,read=2GB/s", "lacks a size or a rate above 0"),
        ("20GiB,read=0GB/s,write=1GB/s", "lacks a size or a rate above 0"),
        ("20GiB,read=2GB,write=1GB/s", "'read=2GB' is no rate"),
        ("20GiB,read=2GB/s,read=2GB/s", "or there twice"),
        ("read=2GB/s,write=1GB/s", "not a size"),
        ("/var/cache/kv:20GiB,read=2GB/s,write=1GB/s", "not a size"),
        ("20GiB,read=fast/s,write=1GB/s", "--kv-disk read= 'fast' is not a size"),
    ],
)
def test_a_disk_that_says_too_little(config: str, given: str, words: str) -> None:
    result = CliRunner().invoke(app, ["plan", "--model-config", config, "--on", "h100", "--kv-disk", given])
    assert words in str(result.exception)
