"""The command line as a user meets it: real processes, exit statuses, one clear sentence."""

import io
import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console
from safetensors.torch import load_file, save_file

from penstock.assembly.prepare import prepare
from penstock.bench import speculation
from penstock.cli.addresses import address_markup
from penstock.configuration.options import EngineOptions
from penstock.kernels.cpu.native import OBSTACLE
from support.checkpoints import make
from support.waiting import PATIENCE

HELLO = ("hello", "--max-tokens", "5", "--temperature", "0", "--threads", "1")


def penstock(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "penstock.cli.main", *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make("qwen3", tmp_path_factory.mktemp("qwen3"))


@pytest.fixture
def copy(checkpoint: Path, tmp_path: Path) -> Path:
    for file in checkpoint.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    return tmp_path


def assert_refused(result: "subprocess.CompletedProcess[str]", *says: str) -> None:
    assert result.returncode == 2, result.stderr
    assert "Traceback" not in result.stderr
    (line,) = result.stderr.strip().splitlines()
    assert line.startswith("penstock: ")
    for fragment in says:
        assert fragment in line


@pytest.mark.parametrize(
    ("host", "url"),
    [("127.0.0.1", "http://127.0.0.1:80/v1"), ("::1", "http://[::1]:80/v1"), ("fe80::1", "http://[fe80::1]:80/v1")],
)
def test_the_address_that_is_printed_can_be_opened(host: str, url: str) -> None:
    console = Console(file=io.StringIO())
    console.print(f"on {address_markup(host, 80)}")
    assert console.file.getvalue() == f"on {url}\n"


def test_version() -> None:
    result = penstock("--version")
    assert result.returncode == 0
    assert re.fullmatch(r"penstock \d+\.\d+\.\d+\n", result.stdout)


def test_numbers_of_processes_that_are_left_to_the_plan_have_a_reason(checkpoint: Path, penstock_here) -> None:
    sizes = [f"--{kind}-parallel-size=auto" for kind in ("tensor", "pipeline", "context", "expert")]
    result = penstock_here("serve", str(checkpoint), "--explain-config", "--threads", "2", *sizes)
    assert result.returncode == 0, result.stderr
    (line,) = (line for line in result.stdout.splitlines() if line.startswith("parallel sizes"))
    assert "tensor 1, expert 1, pipeline 1, context 1" in line
    assert "auto: one process yields the most of requests with 1,024 tokens in" in line and "TP 2" in line
    wrong = penstock_here("serve", str(checkpoint), "--explain-config", "--tensor-parallel-size", "many")
    assert wrong.returncode == 2 and "--tensor-parallel-size is 'many'; it must be a number, or auto" in wrong.stderr


def test_explain_config_gives_every_setting_a_reason(checkpoint: Path, penstock_here) -> None:
    result = penstock_here("serve", str(checkpoint), "--explain-config", "--max-num-seqs", "3")
    assert result.returncode == 0
    for setting in (
        "dtype",
        "threads",
        "max num seqs",
        "kv cache memory",
        "max model len",
        "background tokens",
        "steps at a time",
        "data dir",
        "max queued requests",
        "max queued tokens",
        "max ttft",
        "request timeout",
        "stall timeout",
    ):
        assert setting in result.stdout
    assert "as asked" in result.stdout


def test_what_the_files_say_otherwise_is_explained(copy: Path, penstock_here) -> None:
    tensors = load_file(copy / "model.safetensors")
    head = tensors.get("lm_head.weight", tensors["model.embed_tokens.weight"]) * 2
    save_file({**tensors, "lm_head.weight": head}, copy / "model.safetensors")
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": True, "eos_token_id": 5}))
    result = penstock_here("serve", str(copy), "--explain-config")
    assert result.returncode == 0, result.stderr
    lines = {line.partition("  ")[0]: line for line in result.stdout.splitlines()}
    assert "lm_head.weight" in lines["output head"] and "tie_word_embeddings" in lines["output head"]
    assert "</s> (2)" in lines["end tokens"] and "config.json: 5" in lines["end tokens"]


def test_parsers_are_chosen_and_explained(checkpoint: Path, penstock_here) -> None:
    result = penstock_here("serve", "haiku", "--explain-config", "--reasoning-parser", "think")
    assert result.returncode == 0, result.stderr
    lines = {line.partition("  ")[0]: line for line in result.stdout.splitlines()}
    assert "hermes" in lines["tool call parser"] and "<tool_call>" in lines["tool call parser"]
    assert "think" in lines["reasoning parser"] and "as asked" in lines["reasoning parser"]
    for option in ("--tool-call-parser", "--reasoning-parser"):
        assert_refused(penstock_here("serve", str(checkpoint), option, "xml"), option, "xml", "auto, none")


def test_a_template_in_a_file_is_used_and_explained(tmp_path: Path, penstock_here) -> None:
    file = tmp_path / "mine.jinja"
    file.write_text("{% for m in messages %}{{ m.content }}{% endfor %}")
    result = penstock_here("serve", "haiku", "--explain-config", "--chat-template", str(file))
    assert result.returncode == 0, result.stderr
    lines = {line.partition("  ")[0]: line for line in result.stdout.splitlines()}
    assert str(file) in lines["chat template"] and "as asked" in lines["chat template"]
    assert "as JSON in the text" in lines["tool calls"] and "no calls" in lines["call arguments"]
    own = penstock_here("serve", "haiku", "--explain-config")
    lines = {line.partition("  ")[0]: line for line in own.stdout.splitlines()}
    assert "the model's own" in lines["chat template"] and "as objects" in lines["call arguments"]
    assert lines["developer messages"] and lines["system messages"]
    missing = penstock_here("serve", "haiku", "--explain-config", "--chat-template", "none.jinja")
    assert_refused(missing, "--chat-template", "none.jinja", "no such file")


@pytest.fixture(scope="module")
def answer(checkpoint: Path) -> str:
    """What `penstock run`, as a process, prints for HELLO."""
    first = penstock("run", str(checkpoint), *HELLO)
    assert first.returncode == 0, first.stderr
    return first.stdout


def test_run_answers_one_prompt(checkpoint: Path, answer: str, penstock_here) -> None:
    assert answer.strip()
    assert penstock_here("run", str(checkpoint), *HELLO).stdout == answer


def test_a_folder_whose_name_is_not_utf_8(copy: Path, penstock_here) -> None:
    """Whatever names it: a start, its settings, a message, a file of figures, the process of the engine."""
    folder = copy / os.fsdecode(b"caf\xe9")
    folder.mkdir()
    for file in [file for file in copy.iterdir() if file.is_file()]:
        file.rename(folder / file.name)
    # As a terminal of UTF-8 has it.
    strict = {**os.environ, "PYTHONIOENCODING": "utf-8:strict"}

    def penstock(*arguments: str) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, "-m", "penstock.cli.main", *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, env=strict)

    answered = penstock("run", str(folder), "hello", "--max-tokens", "2", "--temperature", "0", "--threads", "1")
    assert answered.returncode == 0, answered.stderr
    explained = penstock("serve", str(folder), "--explain-config")
    assert explained.returncode == 0 and r"caf\xe9" in explained.stdout, explained.stderr
    sizes = ("--input-len", "4", "--output-len", "2", "--batch-size", "1", "--repeat", "1", "--threads", "1")
    measured = penstock("bench", "engine", str(folder), *sizes, "--json", str(copy / "figures.json"))
    assert measured.returncode == 0, measured.stderr
    assert_refused(penstock_here("run", str(folder / "nothing"), "hello"), r"caf\xe9/nothing does not exist")
    assert prepare(EngineOptions.of(model=str(folder), threads=1), api_beside=True).served_names() == (r"caf\xe9",)


def test_run_chats_and_goes_on_after_a_refusal(checkpoint: Path, penstock_here) -> None:
    lines = "hi\n/clear\n" + "x" * 3000 + "\nhi\n/exit\n"
    options = ("--max-tokens", "3", "--temperature", "0", "--threads", "1")
    result = penstock_here("run", str(checkpoint), *options, stdin=lines)
    assert result.returncode == 0, result.stderr
    assert "max_model_len" in result.stderr
    answers = [line.removeprefix("> ") for line in result.stdout.splitlines()]
    assert len([answer for answer in answers if answer.strip("> ")]) >= 2


@pytest.mark.skipif(OBSTACLE is not None, reason=str(OBSTACLE))
def test_a_chat_can_be_bounded(penstock_here) -> None:
    text = "The quick brown fox jumps over the lazy dog and runs away into the woods. " * 20
    command = ("run", "haiku", text, "--threads", "1", "--temperature", "0", "--max-tokens", "5")
    whole, bounded = penstock_here(*command), penstock_here(*command, "--kv-policy", "window:80")
    assert (whole.returncode, bounded.returncode) == (0, 0), whole.stderr + bounded.stderr
    assert bounded.stdout.strip()
    refused = penstock_here(*command, "--kv-policy", "window:8")
    assert_refused(refused, "--kv-policy: tokens: 8 tokens are less than a KV block")


def test_bench_engine_writes_its_figures(checkpoint: Path, tmp_path: Path, penstock_here) -> None:
    file = tmp_path / "figures.json"
    result = penstock_here(
        "bench", "engine", str(checkpoint), "--input-len", "8", "--output-len", "4", "--batch-size", "1,3",
        "--repeat", "1", "--threads", "1", "--json", str(file),
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    results = json.loads(file.read_text())["results"]
    assert [entry["batch_size"] for entry in results] == [1, 3]
    for entry in results:
        assert entry["prefill_tokens_per_second"] > 0
        assert entry["decode_tokens_per_second"] is None or entry["decode_tokens_per_second"] > 0


def test_bench_engine_needs_neither_weights_nor_tokenizer(checkpoint: Path, tmp_path: Path, penstock_here) -> None:
    (tmp_path / "config.json").write_bytes((checkpoint / "config.json").read_bytes())
    result = penstock_here(
        "bench", "engine", str(tmp_path), "--load-format", "dummy", "--input-len", "4", "--output-len", "2",
        "--batch-size", "2", "--repeat", "1", "--threads", "1", "--static",
    )  # fmt: skip
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--batch-size", "1,8", "--max-num-seqs", "4"), "--max-num-seqs 4"),
        (("--batch-size", "1", "--json", "."), "directory"),
        (("--batch-size", "1", "--json", "./nowhere/figures.json"), "nowhere"),
        (("--batch-size", "9" * 5000), "--batch-size"),
        (
            ("--batch-size", "4", "--input-len", "16", "--output-len", "200", "--max-model-len", "240",
             "--kv-cache-memory", "360KiB"),
            "pool is too small",
        ),
    ],
)  # fmt: skip
def test_bench_engine_refuses_what_would_mislead(
    checkpoint: Path, penstock_here, arguments: tuple[str, ...], says: str
) -> None:
    result = penstock_here("bench", "engine", str(checkpoint), "--threads", "1", "--repeat", "1", *arguments)
    assert result.returncode == 2, result.stderr
    assert says in result.stderr and "Traceback" not in result.stderr
    assert "tokens/s" not in result.stdout


def test_bench_speculation_compares_and_writes_its_figures(
    tmp_path: Path, penstock_here, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    file = tmp_path / "figures.json"
    if not request.config.getoption("slow"):
        # Nobody relies on what is measured here.
        monkeypatch.setattr(speculation, "LEAST_PROMPTS", 4)
    result = penstock_here(
        "bench", "speculation", "haiku", "--proposer", "draft,self", "--depth", "auto,2", "--temperature", "0",
        "--batch-size", "2", "--workload", "quote", "--output-len", "12", "--rounds", "1", "--threads", "1",
        "--json", str(file), "--plots", str(tmp_path / "plots"),
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    drawn = (tmp_path / "plots" / "speculation.svg").read_text()
    assert "draft, depth auto" in drawn and "self, depth 2" in drawn and "speed-up" in drawn
    results = json.loads(file.read_text())["results"]
    assert [(entry["setting"]["proposer"], entry["setting"]["depth"]) for entry in results] == [
        ("draft", None), ("draft", 2), ("self", None), ("self", 2),
    ]  # fmt: skip
    for entry in results:
        assert entry["speedup"] > 0 and 0 <= entry["acceptance"] <= 1


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--depth", "2,x"), "--depth"),
        (("--temperature", "warm"), "--temperature"),
        (("--workload", "poems"), "--workload"),
        (("--proposer", "eagle"), "--speculative eagle"),
        (("--speculative-depth", "2"), "--depth"),
    ],
)
def test_bench_speculation_refuses_what_there_is_not(penstock_here, arguments: tuple[str, ...], says: str) -> None:
    result = penstock_here("bench", "speculation", "haiku", "--threads", "1", "--rounds", "1", *arguments)
    assert result.returncode == 2, result.stderr
    assert says in result.stderr and "Traceback" not in result.stderr


def test_without_a_model_the_bundled_one_is_taken_and_announced(penstock_here) -> None:
    result = penstock_here("serve", "--explain-config")
    assert result.returncode == 0, result.stderr
    (line,) = result.stderr.splitlines()
    assert "no model was given" in line and "writes haiku" in line
    result = penstock_here(
        "bench", "engine", "--input-len", "4", "--output-len", "2", "--batch-size", "1", "--repeat", "1",
        "--threads", "1",
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert "writes haiku" in result.stderr and result.stdout.strip().startswith("haiku:")


@pytest.mark.parametrize(
    "prompt", [("write a haiku about rain",), ("write", "a", "haiku", "about", "rain"), ("x " * 900,)]
)
def test_a_prompt_without_its_model(penstock_here, prompt: tuple[str, ...]) -> None:
    assert_refused(penstock_here("run", *prompt), "penstock run haiku '")


def test_a_folder_is_a_model_and_not_the_bundled_one_of_its_name(
    checkpoint: Path, answer: str, tmp_path: Path, penstock_here, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "haiku").symlink_to(checkpoint)
    monkeypatch.chdir(tmp_path)
    result = penstock_here("run", "./haiku", *HELLO)
    assert result.returncode == 0, result.stderr
    assert result.stdout == answer


def test_a_port_in_use(checkpoint: Path, penstock_here) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        assert_refused(penstock_here("serve", str(checkpoint), "--port", port), f"Port {port}", "--port")


def test_a_model_that_is_not_there(penstock_here) -> None:
    assert_refused(penstock_here("serve", "./nowhere", "--port", "0"), "nowhere", "directory")


def test_a_missing_weight_file(copy: Path, penstock_here) -> None:
    (copy / "model.safetensors").unlink()
    assert_refused(penstock_here("serve", str(copy), "--port", "0"), "safetensors")


def test_a_truncated_weight_file(copy: Path, penstock_here) -> None:
    weights = copy / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    assert_refused(penstock_here("serve", str(copy), "--port", "0"), "model.safetensors", "truncated")


def test_a_tensor_of_the_wrong_shape(copy: Path, penstock_here) -> None:
    tensors = load_file(copy / "model.safetensors")
    name = "model.layers.1.mlp.down_proj.weight"
    tensors[name] = tensors[name][:, :-1].contiguous()
    save_file(tensors, copy / "model.safetensors")
    assert_refused(penstock_here("serve", str(copy), "--port", "0"), name, "95", "96")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"architectures": ["FancyForCausalLM"]}, "FancyForCausalLM"),
        ({"hidden_act": "relu6"}, "relu6"),
        ({"quantization_config": {"quant_method": "aqlm"}}, "quantization_config"),
    ],
)
def test_a_configuration_that_is_not_implemented(
    copy: Path, penstock_here, change: dict[str, object], says: str
) -> None:
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps({**config, **change}))
    assert_refused(penstock_here("serve", str(copy), "--port", "0"), says)


def test_a_tokenizer_beyond_the_vocabulary(copy: Path, penstock_here) -> None:
    tokenizer = json.loads((copy / "tokenizer.json").read_text())
    tokenizer["model"]["vocab"]["th!"] = 4000
    (copy / "tokenizer.json").write_text(json.dumps(tokenizer))
    assert_refused(penstock_here("serve", str(copy), "--port", "0"), "4000", "320")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--max-model-len", "99999"), "1024"),
        (("--max-num-seqs", "8", "--max-num-batched-tokens", "4"), "max-num-batched-tokens"),
        (("--kv-cache-memory", "lots"), "lots"),
        (("--kv-cache-memory", "90000GiB"), "90000.00 GiB"),
        (("--kv-cache-memory", "9" * 320), "--kv-cache-memory"),
        (("--kv-cache-memory", "9" * 20), "--kv-cache-memory"),
        (("--dtype", "int3"), "int3"),
        (("--load-format", "pickle"), "pickle"),
        (("--tokenizer", "./nowhere"), "nowhere"),
        (("--max-queued-requests", "0"), "--max-queued-requests"),
        (("--max-ttft", "nan"), "--max-ttft"),
        (("--tls-key", "key.pem"), "need each other"),
        (("--tls-key", "none.pem", "--tls-certificate", "none.pem"), "cannot be read"),
        (("--target-itl", "-1"), "--target-itl"),
    ],
)
def test_options_that_cannot_work(checkpoint: Path, penstock_here, arguments: tuple[str, ...], says: str) -> None:
    assert_refused(penstock_here("serve", str(checkpoint), "--port", "0", *arguments), says)
