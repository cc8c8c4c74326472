"""`penstock simulate` as users call it."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner

from penstock.cli.main import app
from penstock.planning.hardware import Device
from penstock.planning.own import OwnMachine
from penstock.planning.priors import TYPICAL

HERE = Device("some processor", "cpu", 24e9, 20e9, {"fp32": 1e11, "bf16": 2e11}, 0.0, 0.0, "measured")
ROLES = ["--prefill-replicas", "1", "--decode-replicas", "1"]
TRACE = Path(__file__).parents[2] / "benchmarks" / "sample_trace.csv"


def simulated(*arguments: str) -> dict[str, Any]:
    result = CliRunner().invoke(app, ["simulate", "haiku", "--on", "l4", "--json", "-", *arguments])
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_more_load_waits_longer() -> None:
    slow, fast = (simulated("--rate", rate, "--requests", "300", "--slo", "ttft=50ms") for rate in ("1", "400"))
    assert slow["summary"]["succeeded"] == fast["summary"]["succeeded"] == 300
    assert slow["summary"]["ttft"]["p99"] < fast["summary"]["ttft"]["p99"]
    assert slow["busy"] < fast["busy"] <= 1.0
    assert slow["most_waiting"] <= fast["most_waiting"]
    assert slow["summary"]["good"] >= fast["summary"]["good"]


def test_the_same_seed_gives_the_same_run() -> None:
    arguments = ("--rate", "20", "--requests", "50", "--input-len", "lognormal:200,100", "--output-len", "10-50")
    first, again, other = simulated(*arguments), simulated(*arguments), simulated(*arguments, "--seed", "1")
    assert first == again != other


def test_a_trace_has_its_own_lengths() -> None:
    found = simulated("--trace", str(TRACE), "--requests", "20")
    assert found["summary"]["succeeded"] == 20
    assert found["summary"]["arrivals"]["type"] == "replay"


def test_lengths_of_a_trace_are_multiplied() -> None:
    whole, half = (simulated("--trace", str(TRACE), "--length-scale", scale)["summary"] for scale in ("1", "0.5"))
    assert half["input_tokens"] == pytest.approx(whole["input_tokens"] / 2, rel=0.01)
    assert half["output_tokens"] == pytest.approx(whole["output_tokens"] / 2, rel=0.05)


def test_a_closed_loop_has_a_number_of_requests_at_a_time() -> None:
    one, eight = (
        simulated("--concurrency", size, "--requests", "64", "--output-len", "20-60")["summary"] for size in ("1", "8")
    )
    assert one["arrivals"] == {"type": "closed", "concurrency": 1}
    assert one["most_in_flight"] == 1 and eight["most_in_flight"] == 8
    assert eight["output_token_rate"] > 2 * one["output_token_rate"]


def test_prompts_share_one_of_several_prefixes() -> None:
    arguments = ("--rate", "5", "--requests", "60", "--input-len", "64", "--prefix-len", "512")
    found, other = (simulated(*arguments, "--prefixes", count) for count in ("2", "30"))
    few, many = found["summary"], other["summary"]
    assert few["input_tokens"] == many["input_tokens"] == 60 * 576
    # Each prefix is computed once, unless two requests that have it come together.
    assert 0.9 * 58 * 512 <= few["cached_tokens"] <= 58 * 512
    assert many["cached_tokens"] < few["cached_tokens"]
    without = simulated(*arguments, "--prefixes", "2", "--no-enable-prefix-caching")
    assert without["hit_rate"] == 0 and without["busy"] > found["busy"]


def test_a_conversation_goes_on_with_all_before_it() -> None:
    arguments = ("--rate", "1", "--requests", "10", "--input-len", "64", "--output-len", "32", "--turns", "3")
    found = simulated(*arguments, "--think-time", "5")
    summary = found["summary"]
    assert summary["succeeded"] == 30
    assert summary["input_tokens"] == 10 * (64 + (64 + 32 + 64) + (64 + 32 + 64 + 32 + 64))
    # Of each turn before, all full blocks.
    assert summary["cached_tokens"] == 10 * (80 + 176)
    assert found["hit_rate"] == pytest.approx(summary["cached_tokens"] / summary["input_tokens"])
    apart = simulated(*arguments, "--router", "round-robin", "--replicas", "3", "--think-time", "5")
    assert 0 < apart["hit_rate"] < found["hit_rate"]


def test_plots_are_drawn_of_all_rates_that_were_tried(tmp_path: Path) -> None:
    search = ("--find-rate", "--slo", "ttft=50ms", "--plots", str(tmp_path))
    found = simulated("--rate", "5", "--requests", "40", "--output-len", "8", *search)
    assert {file.name for file in tmp_path.iterdir()} == {
        f"{name}.svg" for name in ("latencies", "in-flight", "throughput-latency", "goodput")
    }
    drawn = (tmp_path / "latencies.svg").read_text()
    assert all(f"{rate:.4g}/s" in drawn for rate, _ in found["tried"])


def test_what_it_costs() -> None:
    arguments = ("--rate", "5", "--requests", "20", "--replicas", "3")
    found = simulated(*arguments, "--price", "2.50")
    costs, seconds = found["costs"], found["summary"]["seconds"]
    assert costs["dollars"] == pytest.approx(3 * 2.5 * seconds / 3600)
    assert costs["million_output"] == pytest.approx(1e6 * costs["dollars"] / found["summary"]["output_tokens"])
    listed = simulated(*arguments, "--on", "h100")["costs"]
    assert "(on-demand, as of 20" in listed["price"] and listed["dollars"] > 0
    told = CliRunner().invoke(app, ["simulate", "haiku", "--on", "l4", *arguments, "--price", "2.50"]).stdout
    assert "for a million output tokens, at $2.50 an hour for one L4" in " ".join(told.split())


def test_without_a_price_nothing_is_said_of_costs(tmp_path: Path) -> None:
    machine = tmp_path / "mine.json"
    machine.write_bytes(
        msgspec.json.encode(OwnMachine(HERE, "2026-11-26", TYPICAL, (0.9, 1.1), "it", ("plain", "plain"), ()))
    )
    asked = ["simulate", "haiku", "--on", str(machine), "--rate", "1", "--requests", "3", "--output-len", "4"]
    found = json.loads(CliRunner().invoke(app, [*asked, "--json", "-"]).stdout)
    assert found["costs"] is None and "give it with --price" in found["price_notes"][0]
    assert "give it with --price" in " ".join(CliRunner().invoke(app, asked).stdout.split())


def test_prompts_with_the_same_identities_share_their_prefix(tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"

    def cached(second: list[int]) -> int:
        lines = [
            {"timestamp": 0, "input_length": 1500, "output_length": 4, "hash_ids": [7, 8, 9]},
            {"timestamp": 9000, "input_length": 1400, "output_length": 4, "hash_ids": second},
        ]
        trace.write_text("".join(json.dumps(line) + "\n" for line in lines))
        found: int = simulated("--trace", str(trace))["summary"]["cached_tokens"]
        return found

    assert cached([7, 8, 9]) >= 1384 and cached([7, 8, 10]) == 1024
    assert cached([6, 8, 9]) == cached([]) == 0


def test_a_batch_of_one_is_slower_in_words() -> None:
    arguments = ["simulate", "haiku", "--on", "l4", "--rate", "100", "--requests", "50", "--max-num-seqs", "1"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert "Simulated on L4" in result.stdout and "50 requests in" in result.stdout and "waited" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "Say how requests come"),
        (["--rate", "1", "--pipeline-parallel-size", "2"], "have no stages of layers"),
        (["--rate", "1", "--data-parallel-size", "2"], "have no groups that share experts"),
        (["--rate", "1", "--on", "grace", "--context-parallel-size", "2"], "have whole contexts"),
        (["--rate", "1", "--prefill-replicas", "1"], "a role without a partner has nothing to do"),
        (["--rate", "1", *ROLES, "--replicas", "3"], "those with roles are 2"),
        (["--rate", "1", *ROLES, "--kv-policy", "h2o:64"], "--kv-policy does not go together with roles"),
        (["--rate", "1", *ROLES, "--no-enable-prefix-caching"], "Roles need the prefix cache"),
        (["--rate", "1", "--target-itl", "0"], "--target-itl 0 is no time"),
        (["--rate", "1", "--find-rate"], "--find-rate needs --slo"),
        (["--rate", "1", "--kv-cache-memory", "90GB"], "left for it"),
        (["--rate", "1", "--time-scale", "0.5"], "--time-scale has no meaning with --rate"),
        (["--trace", str(TRACE), "--seed", "3"], "--seed has no meaning with --trace"),
        (["--rate", "0"], "--rate 0 is no number of requests a second"),
        (["--rate", "1", "--trace", str(TRACE)], "Say how requests come"),
        (["--rate", "1", "--concurrency", "3"], "Say how requests come"),
        (["--concurrency", "3", "--find-rate", "--slo", "ttft=1s"], "--concurrency has none"),
        (["--concurrency", "3", "--length-scale", "0.5"], "--length-scale has no meaning with --concurrency"),
        (["--trace", str(TRACE), "--length-scale", "0"], "is no factor"),
        (["--trace", str(TRACE), "--prefix-len", "9"], "--prefix-len has no meaning with --trace"),
        (["--rate", "1", "--prefixes", "9"], "--prefixes without --prefix-len has no meaning"),
        (["--rate", "1", "--think-time", "9"], "--think-time without --turns has no meaning"),
        (["--trace", str(TRACE), "--turns", "2"], "--turns has no meaning with --trace"),
        (["--trace", "nothing.csv"], "nothing.csv cannot be read"),
        (["--rate", "1", "--input-len", "many"], "--input-len 'many' is no number of tokens"),
    ],
)
def test_what_cannot_be_simulated_is_one_sentence(arguments: list[str], told: str) -> None:
    result = CliRunner().invoke(app, ["simulate", "haiku", "--on", "l4", *arguments])
    assert result.exit_code != 0
    assert told in str(result.exception) + result.output


def test_replicas_with_roles_say_what_became_of_prompts(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    models = Path(__file__).parents[2] / "benchmarks" / "public_models.json"
    config.write_text(json.dumps(json.loads(models.read_text())["Llama-3.1-8B"]))
    traffic = ["--rate", "8", "--requests", "60", "--input-len", "4096-8192", "--output-len", "200"]
    arguments = ["simulate", "--model-config", str(config), "--on", "h100", *traffic]
    played = CliRunner().invoke(app, [*arguments, *ROLES, "--kv-transfer", "50GB/s", "--json", "-"])
    found = json.loads(played.stdout)
    roles = found["roles"]
    assert found["replicas"] == 2 and roles["transfer"] == 50e9
    assert roles["handed_over"] + roles["stayed"] == 60 and roles["handed_over"] > 0
    said = CliRunner().invoke(app, [*arguments, *ROLES])
    assert "1 replica computes prompts, and 1 decodes" in " ".join(said.stdout.split())
    assert json.loads(CliRunner().invoke(app, [*arguments, "--json", "-"]).stdout)["roles"] is None


def test_the_devices_make_the_replicas() -> None:
    arguments = [
        "simulate",
        "haiku",
        "--on",
        "8x h100",
        "--tensor-parallel-size",
        "2",
        "--rate",
        "5",
        "--requests",
        "5",
    ]
    assert "Simulated on 4 replicas, round-robin, each 2 x H100 SXM" in CliRunner().invoke(app, arguments).stdout
    one = CliRunner().invoke(app, [*arguments, "--replicas", "1"]).stdout
    assert "Simulated on 2 x H100 SXM" in one


def test_a_hundred_thousand_devices_are_a_flow(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps(json.loads((TRACE.parent / "public_models.json").read_text())["Llama-3.1-70B"]))
    fleet = ["--on", "8xh100", "--dtype", "fp8", "--replicas", "12500", "--fluid"]
    arguments = ["simulate", "--model-config", str(config), *fleet]
    calm = CliRunner().invoke(app, [*arguments, "--rate", "20000", "--json", "-"])
    assert calm.exit_code == 0, calm.output
    found = json.loads(calm.stdout)
    assert found["devices"] == 100_000 and not found["grows"]
    assert found["end"]["output_tokens_per_second"] == pytest.approx(20_000 * 256, rel=0.02)
    crowded = CliRunner().invoke(app, [*arguments, "--rate", "900000"])
    assert "The queue grows without end" in crowded.stdout and "100,000 devices" in crowded.stdout


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--rate", "1", "--slo", "ttft=1s"], "which --fluid does not play"),
        (["--rate", "1", "--seed", "3"], "--seed has no meaning with --fluid"),
        (["--rate", "1", "--prefix-len", "3"], "--prefix-len has no meaning with --fluid"),
        (["--rate", "1", "--prefixes", "3"], "--prefixes has no meaning with --fluid"),
        (["--rate", "1", "--turns", "3"], "--turns has no meaning with --fluid"),
        (["--rate", "1", "--no-enable-prefix-caching"], "--no-enable-prefix-caching has no meaning with --fluid"),
        (["--rate", "1", "--price", "3"], "--price has no meaning with --fluid"),
        (["--concurrency", "3"], "--concurrency has no meaning with --fluid"),
        (["--rate", "1", *ROLES], "--prefill-replicas has no meaning with --fluid"),
        ([], "--fluid needs --rate"),
    ],
)
def test_a_flow_has_no_single_requests(options: list[str], told: str) -> None:
    result = CliRunner().invoke(app, ["simulate", "haiku", "--on", "l4", "--fluid", *options])
    assert told in str(result.exception)


def test_a_request_that_does_not_fit_is_refused() -> None:
    arguments = ["simulate", "haiku", "--on", "t4", "--rate", "1", "--input-len", "5000000"]
    assert "does not fit into the cache of T4" in str(CliRunner().invoke(app, arguments).exception)


def test_a_model_without_room_for_a_cache_is_refused(tmp_path: Path) -> None:
    models = json.loads((TRACE.parent / "public_models.json").read_text())
    config = tmp_path / "config.json"
    config.write_text(json.dumps(models["Llama-3.1-70B"]))
    arguments = ["simulate", "--model-config", str(config), "--on", "h100", "--rate", "1"]
    result = CliRunner().invoke(app, arguments)
    assert "no memory left for keys and values" in str(result.exception)


def test_a_disk_keeps_what_pools_have_no_room_for(tmp_path: Path) -> None:
    machine = tmp_path / "mine.json"
    slow = msgspec.structs.replace(HERE, rates={"fp32": 1e10, "bf16": 1e10})
    machine.write_bytes(
        msgspec.json.encode(OwnMachine(slow, "2026-11-26", TYPICAL, (0.9, 1.1), "it", ("plain", "plain"), ()))
    )
    asked = ("--on", str(machine), "--rate", "0.5", "--requests", "20", "--input-len", "64", "--output-len", "32")
    asked += ("--turns", "4", "--think-time", "60", "--kv-cache-memory", "3MiB", "--max-num-seqs", "4")
    without = simulated(*asked)
    found = simulated(*asked, "--kv-disk", "1GiB,read=1GB/s,write=1GB/s")
    small = simulated(*asked, "--kv-disk", "4MiB,read=1GB/s,write=1GB/s")
    assert without["disk"] is None and without["hit_rate"] < 0.1
    # Of each turn, all full blocks of those before it.
    assert found["summary"]["cached_tokens"] == 20 * (80 + 176 + 272) and found["disk"]["dropped"] == 0
    assert found["busy"] < 0.8 * without["busy"]
    assert 0.5 < found["disk"]["hit_rate"] <= found["hit_rate"]
    assert small["hit_rate"] < found["hit_rate"]
    told = " ".join(
        CliRunner()
        .invoke(app, ["simulate", "haiku", *asked, "--kv-disk", "1GiB,read=1GB/s,write=1GB/s"])
        .stdout.split()
    )
    assert "of the prompts' tokens came from disks, and" in told and "Copies between a GPU's memory" not in told


def test_a_disk_without_a_prefix_cache_is_refused() -> None:
    asked = ["simulate", "haiku", "--on", "l4", "--rate", "1", "--kv-disk", "1GiB,read=1GB/s,write=1GB/s"]
    result = CliRunner().invoke(app, [*asked, "--no-enable-prefix-caching"])
    assert "keeps no prefix" in str(result.exception)
    result = CliRunner().invoke(app, [*asked, "--fluid"])
    assert "--kv-disk has no meaning with --fluid" in str(result.exception)


@pytest.mark.parametrize("policy", ["window:256", "h2o:256,recent=64", "scissorhands:256,recent=64", "snapkv:256"])
def test_bounded_contexts_leave_room_for_more(policy: str) -> None:
    """A cache that holds few whole contexts at a time holds many bounded ones; `snapkv` bounds prompts at their end."""
    arguments = ("--concurrency", "16", "--requests", "48", "--input-len", "600", "--output-len", "300")
    arguments += ("--kv-cache-memory", "12MiB")
    whole, bounded = simulated(*arguments), simulated(*arguments, "--kv-policy", policy)
    assert whole["summary"]["succeeded"] == bounded["summary"]["succeeded"] == 48
    assert bounded["summary"]["output_token_rate"] > whole["summary"]["output_token_rate"]


def test_a_policy_that_cannot_be_is_refused() -> None:
    result = CliRunner().invoke(app, ["simulate", "haiku", "--on", "l4", "--rate", "1", "--kv-policy", "window:8"])
    assert "--kv-policy: tokens: 8 tokens are less than a KV block" in str(result.exception)
