"""A fleet as values of the Helm chart; tests/deploy renders such values."""

from pathlib import Path
from typing import Any

import pytest

from penstock.core.errors import ConfigurationError
from penstock.fleet.description import FleetDescription, read_description
from penstock.fleet.kubernetes import values_of

WHOLE = """
[gateway]
policy = "prefix"
options = { log_format = "json", no_auth = true }

[gateway.hold]
seconds = 90.0

[[model]]
name = "chat"
model = "Qwen/Qwen3-0.6B"
replicas = { least = 0, most = 4 }
cores = 4
memory = "8GiB"
options = { quantization = "int8", max_num_seqs = 16 }
slo = "ttft=500ms"
cost_per_hour = 0.5
down_seconds = 90.5
start_seconds = 100.0
drain_seconds = 12.5

[[model]]
name = "embed"
model = "sentence-transformers/all-MiniLM-L6-v2"
replicas = 2
memory = "1GiB"
"""


def described(folder: Path, text: str) -> FleetDescription:
    file = folder / "fleet.toml"
    file.write_text(text)
    return read_description(file)


def test_all_of_a_description_is_there(tmp_path: Path) -> None:
    values = values_of(described(tmp_path, WHOLE), keys_secret="keys")
    chat, embed = values["models"]
    assert chat == {
        "name": "chat",
        "model": "Qwen/Qwen3-0.6B",
        "replicas": {"least": 0, "most": 4},
        "startSeconds": 34,
        "drainSeconds": 13,
        "options": {"quantization": "int8", "max_num_seqs": 16, "cost-per-hour": 0.5},
        "slo": "ttft=500ms",
        "resources": {"requests": {"cpu": "4", "memory": "8192Mi"}, "limits": {"memory": "8192Mi"}},
    }
    assert "machines" not in embed and embed["replicas"] == 2 and embed["resources"]["limits"] == {"memory": "1024Mi"}
    assert values["scaling"] == {"by": "keda", "downSeconds": 91}
    assert values["monitoring"] == {"serviceMonitors": True}
    gateway = values["gateway"]
    assert gateway["keysSecret"] == "keys" and gateway["options"] == {"log_format": "json"}
    assert set(gateway["file"]) == {"policy", "hold"} and gateway["file"]["hold"]["seconds"] == 90.0


def test_what_is_as_without_it_is_not_said(tmp_path: Path) -> None:
    values = values_of(described(tmp_path, '[[model]]\nname = "haiku"'), no_auth=True)
    assert values["gateway"] == {"noAuth": True} and "scaling" not in values
    assert "options" not in values["models"][0] and "resources" not in values["models"][0]


@pytest.mark.parametrize(
    ("more", "access", "cause"),
    [
        ("", {}, "--keys-secret"),
        ("", {"keys_secret": "k", "no_auth": True}, "--no-auth"),
        ('[gateway]\noptions = { api_key_file = "keys.toml" }', {"no_auth": True}, "gateway.keysSecret"),
        ('[gateway]\noptions = { database = "x.sqlite" }', {"no_auth": True}, "gateway.databaseSecret"),
        ('[gateway]\noptions = { limits_store = "redis://x" }', {"no_auth": True}, "PENSTOCK_LIMITS_STORE"),
        ('[gateway]\noptions = { tls_key = "k.pem" }', {"no_auth": True}, "end TLS before it"),
        ('[gateway]\nexpect = ["other"]', {"no_auth": True}, "has expect, which the chart writes itself"),
        ('[[gateway.replica]]\nurl = "http://10.0.0.1:1"', {"no_auth": True}, "has replica"),
    ],
)
def test_what_a_cluster_cannot_have_is_refused(tmp_path: Path, more: str, access: dict[str, Any], cause: str) -> None:
    fleet = described(tmp_path, f'[[model]]\nname = "haiku"\n{more}')
    with pytest.raises(ConfigurationError, match=cause):
        values_of(fleet, **access)


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        (
            'budget_per_hour = 3.0\n[[model]]\nname = "haiku"\ncost_per_hour = 1.0',
            "budget_per_hour",
        ),
        (
            '[[model]]\nname = "haiku"\nreplicas = { least = 0, most = 2, forecast = true }',
            "forecast",
        ),
    ],
)
def test_what_only_those_know_that_start_replicas_themselves(tmp_path: Path, text: str, cause: str) -> None:
    with pytest.raises(ConfigurationError, match=f"{cause} holds where Penstock itself starts replicas"):
        values_of(described(tmp_path, text), no_auth=True)


def test_machines_of_a_replica_are_the_charts(tmp_path: Path) -> None:
    text = '[[model]]\nname = "big"\nmachines = 2\noptions = { pipeline_parallel_size = 2 }'
    values = values_of(described(tmp_path, text), no_auth=True, machines_secret="in common")
    (big,) = values["models"]
    assert values["machinesSecret"] == "in common" and big["machines"] == 2
    assert big["options"] == {"pipeline_parallel_size": 2}
    with pytest.raises(ConfigurationError, match="--machines-secret"):
        values_of(described(tmp_path, text), no_auth=True)
    with pytest.raises(ConfigurationError, match="No model has several machines; leave --machines-secret out"):
        values_of(described(tmp_path, '[[model]]\nname = "haiku"'), no_auth=True, machines_secret="in common")
