"""What a file describes, and the sentence for what cannot be."""

import re
from pathlib import Path

import pytest

from penstock.assembly.fleet import ground_of
from penstock.core.errors import ConfigurationError
from penstock.fleet.description import Between, arguments_of, read_description
from penstock.gateway.options import HoldOptions, read_fleet

WHOLE = """
version = 1
name = "house"
surge = 0

[gateway]
host = "0.0.0.0"
port = 9000
policy = "least-loaded"
options = { no_auth = true }

[gateway.hold]
seconds = 5.0

[[model]]
name = "chat"
model = "haiku"
replicas = { least = 1, most = 3 }
cores = 2
memory = "4GiB"
slo = "ttft=500ms"
cost_per_hour = 0.5
options = { max_num_seqs = 4, enable-prefix-caching = false, allowed_origin = ["a", "b"], explain_prompts = true }

[[model]]
name = "haiku"
"""


def described(folder: Path, text: str, name: str = "fleet.toml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_everything_is_read(tmp_path: Path) -> None:
    fleet = read_description(described(tmp_path, WHOLE))
    chat, haiku = fleet.model
    assert (fleet.name, fleet.surge, fleet.gateway.port) == ("house", 0, 9000)
    assert fleet.gateway.file.policy == "least-loaded" and fleet.gateway.file.hold == HoldOptions(seconds=5.0)
    assert chat.bounds == Between(1, 3) and haiku.bounds == Between(1, 1) and haiku.source == "haiku"
    assert chat.arguments() == [
        *("haiku", "--served-model-name", "chat", "--drain-timeout", "30", "--slo", "ttft=500ms"),
        *("--cost-per-hour", "0.5", "--max-num-seqs", "4", "--no-enable-prefix-caching"),
        *("--allowed-origin", "a", "--allowed-origin", "b", "--explain-prompts"),
    ]
    assert arguments_of(fleet.gateway.options) == ["--no-auth"]


def test_a_file_gives_its_name_to_a_fleet_without_one(tmp_path: Path) -> None:
    assert read_description(described(tmp_path, '[[model]]\nname = "haiku"', "My Fleet.toml")).name == "my-fleet"


def test_a_version_changes_with_what_replicas_are(tmp_path: Path) -> None:
    def version(text: str) -> str:
        return read_description(described(tmp_path, WHOLE.replace(*text.split(" → ")))).of("chat").version

    same = version("zzz → z")
    assert version("most = 3 → most = 4") == same and version("port = 9000 → port = 1") == same
    assert len({same, version("cores = 2 → cores = 1"), version("max_num_seqs = 4 → max_num_seqs = 5")}) == 3


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("version = 1 → version = 2", "has version 2, and this release of Penstock reads version 1"),
        ('name = "house" → name = "The House"', "small letters"),
        ('name = "chat" → name = "a/b"', "put what `penstock serve` takes into `model`"),
        ('name = "chat" → name = "haiku"', "Two models have the name haiku"),
        ("least = 1, most = 3 → least = 3, most = 1", "from 3 to 1 replicas"),
        ("least = 1, most = 3 → least = 1, most = 3, hours = { 8-18 = 4 }", "4 replicas at least from 8-18 o'clock"),
        ("least = 1, most = 3 → least = 0, most = 3, hours = { 8-18 = 0 }", "0 replicas at least from 8-18 o'clock"),
        ("least = 1, most = 3 → least = 1, most = 3, hours = { 8-8 = 2 }", "'8-8' are no hours of a day"),
        ("least = 1, most = 3 → least = 1, most = 3, hours = { 0-24 = 2 }", "'0-24' are no hours of a day"),
        ("least = 1, most = 3 → least = 1, most = 3, hours = { morning = 2 }", "'morning' are no hours of a day"),
        ("least = 1, most = 3 → least = 0, most = 0", "from 0 to 0 replicas"),
        ("max_num_seqs = 4 → port = 4", "have 'port', which the fleet itself sets"),
        ("no_auth = true → config = 'x'", "options of the gateway have 'config'"),
        ("4GiB → much", "memory of chat 'much' is not a size"),
        ("ttft=500ms → fast", "fast"),
        ("cost_per_hour = 0.5 → cost_per_hour = -1", "it must be 0 or more"),
        ("cores = 2 → cores = 0", "cores"),
        ("cores = 2 → machines = 0", "machines"),
        ("cores = 2 → machines = 2", "pipeline-parallel-size is 1; write a multiple of 2 into its options"),
        ("max_num_seqs = 4 → machines = 4", "have 'machines', which the fleet itself sets"),
        ("cores = 2 → corse = 2", "unknown field `corse`"),
        ("surge = 0 → surge = ", "is no TOML"),
        ("port = 9000 → port = 90000", "from 0 to 65535"),
        ("least = 1, most = 3 → least = 2, most = 2, forecast = true", "always has 2 replicas; leave forecast out"),
        ("surge = 0 → budget_per_hour = 0", "write dollars above 0"),
        ("surge = 0 → budget_per_hour = 5.0", "haiku has no cost_per_hour"),
    ],
)
def test_what_cannot_be_is_said(tmp_path: Path, change: str, said: str) -> None:
    before, _, after = change.partition(" → ")
    assert before in WHOLE
    with pytest.raises(ConfigurationError) as error:
        read_description(described(tmp_path, WHOLE.replace(before, after)))
    assert said in error.value.message and error.value.message.endswith(".")


def test_a_replica_of_several_machines_is_told_so_and_others_join_it(tmp_path: Path) -> None:
    text = '[[model]]\nname = "big"\nmachines = 2\noptions = { pipeline_parallel_size = 4, load_format = "dummy" }'
    (big,) = read_description(described(tmp_path, text)).model
    assert big.arguments()[-6:] == ["--machines", "2", "--pipeline-parallel-size", "4", "--load-format", "dummy"]
    assert big.joining == ["big", "--load-format", "dummy"]


def test_one_machine_has_no_place_for_two(tmp_path: Path) -> None:
    text = '[[model]]\nname = "big"\nmachines = 2\noptions = { pipeline_parallel_size = 2 }'
    with pytest.raises(ConfigurationError, match="big has 2 machines, and --on local has one"):
        ground_of(read_description(described(tmp_path, text)), "local")


def test_a_file_that_is_not_there_and_a_fleet_without_models(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot be read"):
        read_description(tmp_path / "fleet.toml")
    with pytest.raises(ConfigurationError, match="has no model"):
        read_description(described(tmp_path, "model = []"))


def test_the_gateways_part_is_what_its_own_file_has(tmp_path: Path) -> None:
    """As JSON, which a program writes more easily."""
    import msgspec

    told = read_description(described(tmp_path, WHOLE)).gateway.file
    path = tmp_path / "gateway.json"
    path.write_bytes(msgspec.json.encode(told))
    assert read_fleet(path) == told
    path.write_text("{")
    with pytest.raises(ConfigurationError, match="cannot be used"):
        read_fleet(path)


APART = """
[[model]]
name = "haiku"
role = "decode"
replicas = 2

[[model]]
name = "prompts"
role = "prefill"
of = "haiku"
"""


def test_replicas_that_compute_prompts_serve_under_the_name_of_those_that_go_on(tmp_path: Path) -> None:
    decode, prefill = read_description(described(tmp_path, APART)).model
    assert decode.arguments() == ["haiku", "--served-model-name", "haiku", "--drain-timeout", "30", "--role", "decode"]
    assert prefill.arguments() == [
        "haiku",
        "--served-model-name",
        "haiku",
        "--drain-timeout",
        "30",
        "--role",
        "prefill",
    ]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ('role = "decode" → role = "both"', 'which is no model here with role = "decode"; describe'),
        (
            'of = "haiku" → of = "chat"',
            'prompts computes prompts for chat, which is no model here with role = "decode"',
        ),
        ('role = "prefill" → role = "decode"', 'must have role = "prefill" and `of`'),
        ('role = "prefill"\nof = "haiku" → ', "and no model computes its prompts; describe one with"),
        (
            "replicas = 2 → replicas = { least = 1, most = 2 }",
            "haiku has a role, and a number of replicas that follows",
        ),
        ('of = "haiku" → of = "haiku"\nmodel = "haiku-draft"', "write the same `model`"),
        ('role = "decode" → options = { role = "decode" }', "which the fleet itself sets"),
    ],
)
def test_a_role_has_a_partner(change: str, said: str, tmp_path: Path) -> None:
    before, after = change.split(" → ")
    assert before in APART
    with pytest.raises(ConfigurationError, match=re.escape(said)):
        read_description(described(tmp_path, APART.replace(before, after)))
