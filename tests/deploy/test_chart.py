"""The Helm chart: what it renders is valid, and what it starts is what commands of this package take."""

import hashlib
import json
import math
import os
import re
import subprocess
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml

from gateway.conftest import gateways
from penstock.access.keys import parse_keys
from penstock.cli.main import app
from penstock.gateway.options import FleetOptions, read_fleet
from penstock.observability.gateway_definitions import GATEWAY_DEFINITIONS
from support.scripted_http import whole_answer

try:
    import helm_python as helm
    import kubernetes_validate
except ImportError:
    if os.environ.get("CI"):
        raise
    pytest.skip("Helm is not installed (the package helm-python-sdk)", allow_module_level=True)

CHART = Path(__file__).resolve().parents[2] / "deploy" / "helm" / "penstock"
VARIANTS = {path.name.removesuffix("-values.yaml"): path for path in sorted((CHART / "ci").iterdir())}
VERSION = "1.34"
# Of resources that Kubernetes itself does not have.
FOREIGN = {
    "ScaledObject": "keda.sh/v1alpha1",
    "ServiceMonitor": "monitoring.coreos.com/v1",
    "PrometheusRule": "monitoring.coreos.com/v1",
    "HTTPRoute": "gateway.networking.k8s.io/v1",
    "InferencePool": "inference.networking.k8s.io/v1",
    "LeaderWorkerSet": "leaderworkerset.x-k8s.io/v1",
}
Resource = dict[str, Any]


def values(variant: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(VARIANTS[variant].read_text())
    return found


def rendered(given: Mapping[str, Any]) -> list[Resource]:
    """All resources that the chart has with some values."""
    with helm.Chart.load(str(CHART)) as chart:
        chart.validate_schema(dict(given))
        files = chart.render(dict(given), name="demo", namespace="prod")
    texts = (text for name, text in files.items() if name.endswith(".yaml"))
    return [each for text in texts for each in yaml.safe_load_all(text) if each]


def of_kind(resources: list[Resource], *kinds: str) -> list[Resource]:
    return [each for each in resources if each["kind"] in kinds]


def pods(resources: list[Resource]) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """The name, the pod that serves and its only container of each deployment, and of each set of several pods."""
    for each in of_kind(resources, "Deployment", "LeaderWorkerSet"):
        spec = each["spec"]
        pod = (spec["template"] if "template" in spec else spec["leaderWorkerTemplate"]["leaderTemplate"])["spec"]
        [container] = pod["containers"]
        yield each["metadata"]["name"], pod, container


every = pytest.mark.parametrize("variant", VARIANTS)


def test_there_are_a_dozen_variants() -> None:
    assert len(VARIANTS) >= 12


@every
def test_resources_are_valid(variant: str) -> None:
    resources = rendered(values(variant))
    names = [(each["kind"], each["metadata"]["name"]) for each in resources]
    assert len(set(names)) == len(names) and all(len(name) <= 63 for _, name in names)
    for each in resources:
        if each["kind"] in FOREIGN:
            assert each["apiVersion"] == FOREIGN[each["kind"]]
        else:
            kubernetes_validate.validate(each, VERSION, strict=True)


@every
def test_helm_has_nothing_to_say(variant: str) -> None:
    told = helm.lint(str(CHART), values(variant), namespace="prod")
    assert not told["errors"]
    assert [each["error"] for each in told["messages"]] == ["icon is recommended"]


@every
def test_commands_take_what_containers_are_started_with(variant: str) -> None:
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    for _, _, container in pods(rendered(values(variant))):
        command, *arguments = container["args"]
        assert all(isinstance(each, str) for each in container["args"])
        # A wrong option, or a value of another type, is a usage error.
        found = commands[command].make_context(command, arguments).params
        assert found["host"] == "0.0.0.0" and found["drain_timeout"] >= 0


@every
def test_the_gateway_reads_its_file(variant: str, tmp_path: Path) -> None:
    given, resources = values(variant), rendered(values(variant))
    [content] = [
        each["data"]["gateway.json"] for each in of_kind(resources, "ConfigMap") if "gateway.json" in each["data"]
    ]
    file = tmp_path / "gateway.json"
    file.write_text(content)
    fleet: FleetOptions = read_fleet(file).check()
    services = {
        f"http://{each['metadata']['name']}.prod.svc:8000"
        for each in of_kind(resources, "Service")
        if each["spec"].get("clusterIP") == "None"
    }
    assert {each.url for each in fleet.replica} == services and all(each.dns for each in fleet.replica)
    assert fleet.expect == tuple(model["name"] for model in given["models"])
    assert fleet.policy == given.get("gateway", {}).get("file", {}).get("policy", "estimated")


@every
def test_probes_and_ends_fit_starts_and_drains(variant: str) -> None:
    given = {model["name"]: model for model in values(variant)["models"]}
    for name, pod, container in pods(rendered(values(variant))):
        stop = container["lifecycle"]["preStop"]["sleep"]["seconds"]
        drain = float(container["args"][container["args"].index("--drain-timeout") + 1])
        assert pod["terminationGracePeriodSeconds"] >= stop + drain + 20
        assert container["livenessProbe"]["httpGet"]["path"] == "/health/live"
        startup = container["startupProbe"]
        if name != "demo-gateway":
            model = given[container["args"][container["args"].index("--served-model-name") + 1]]
            least = 3 * model.get("startSeconds", 120)
            allowed = startup["periodSeconds"] * startup["failureThreshold"]
            assert least <= allowed <= max(60, least + startup["periodSeconds"])
            assert drain == model.get("drainSeconds", 30)


@every
def test_containers_have_no_rights_that_they_do_not_need(variant: str) -> None:
    for _, pod, container in pods(rendered(values(variant))):
        assert pod["securityContext"]["runAsNonRoot"] and pod["automountServiceAccountToken"] is False
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        rights = container["securityContext"]
        assert rights["readOnlyRootFilesystem"] and not rights["allowPrivilegeEscalation"]
        assert rights["capabilities"] == {"drop": ["ALL"]}
        assert not container["image"].endswith(":latest")
        # What it writes to has a volume.
        assert {"/tmp", "/var/lib/penstock"} <= {each["mountPath"] for each in container["volumeMounts"]}


@every
def test_selectors_find_their_pods_and_no_others(variant: str) -> None:
    resources = rendered(values(variant))
    labels = {
        each["metadata"]["name"]: template["metadata"]["labels"]
        for each in of_kind(resources, "Deployment", "LeaderWorkerSet")
        for template in [each["spec"].get("template") or each["spec"]["leaderWorkerTemplate"]["leaderTemplate"]]
    }
    for each in of_kind(resources, "Deployment", "Service", "PodDisruptionBudget", "InferencePool"):
        selector, own = each["spec"]["selector"], each["metadata"]["name"].removesuffix("-picker")
        wanted = selector.get("matchLabels", selector)
        assert [name for name, has in labels.items() if wanted.items() <= has.items()] == [own]
    services = {each["metadata"]["name"] for each in of_kind(resources, "Service")}
    pickers = {each["spec"]["endpointPickerRef"]["name"] for each in of_kind(resources, "InferencePool")}
    assert pickers <= services
    scaled = [each["spec"]["scaleTargetRef"]["name"] for each in of_kind(resources, "ScaledObject")]
    assert set(scaled) <= set(labels)
    # What something else decides is not said here, too.
    for each in of_kind(resources, "Deployment", "LeaderWorkerSet"):
        assert ("replicas" in each["spec"]) is (each["metadata"]["name"] not in {*scaled, *autoscaled(resources)})


def autoscaled(resources: list[Resource]) -> set[str]:
    return {each["spec"]["scaleTargetRef"]["name"] for each in of_kind(resources, "HorizontalPodAutoscaler")}


def test_gateways_have_the_key_that_replicas_take() -> None:
    [secret] = of_kind(rendered(values("several")), "Secret")
    key, file = secret["stringData"]["key"], secret["stringData"]["keys.toml"]
    [found] = parse_keys(file.encode(), Path("keys.toml"))
    assert found.digest == hashlib.sha256(key.encode()).digest() and found.tenant.for_others
    assert len(key) > 40 and tomllib.loads(file)["key"][0]["name"] == "gateway"
    # Behind an inference pool requests go past gateways, and so have no such key.
    assert not of_kind(rendered(values("inference-pool")), "Secret")


def test_metrics_that_numbers_of_replicas_follow_are_there_without_replicas() -> None:
    resources = rendered(values("keda"))
    queries = [
        trigger["metadata"]["query"]
        for each in of_kind(resources, "ScaledObject")
        for trigger in each["spec"]["triggers"]
        if trigger["type"] == "prometheus"
    ]
    assert len(queries) == 6
    with gateways() as start:
        expected = tuple(model["name"] for model in values("keda")["models"])
        told = start(whole_answer, expect=expected).http.get("/metrics").text
    series = re.compile(r'(?:sum|max)\((\w+)\{model="([^"]+)",namespace="prod",at="(\w+)"\}\)')
    for query in queries:
        if "increase" in query:
            name, model = re.fullmatch(
                r'sum\(increase\((\w+)\{model="([^"]+)",namespace="prod"\}\[120s\]\)\)', query
            ).groups()  # type: ignore[union-attr]
            assert f'{name}{{model="{model}"}} 0.0' in told.splitlines()
            continue
        assert series.sub("", query) == " + "
        for name, model, at in series.findall(query):
            assert f'{name}{{model="{model}",at="{at}"}} 0.0' in told.splitlines()
    [hpa] = of_kind(rendered(values("hpa")), "HorizontalPodAutoscaler")
    for metric in hpa["spec"]["metrics"]:
        wanted = metric["external"]["metric"]
        assert set(wanted["selector"]["matchLabels"]) == set(GATEWAY_DEFINITIONS[wanted["name"]].labels)


def test_scaling_is_asymmetric_and_within_bounds() -> None:
    first, second = of_kind(rendered(values("keda")), "ScaledObject")
    assert (first["spec"]["minReplicaCount"], first["spec"]["maxReplicaCount"]) == (0, 6)
    assert second["spec"]["fallback"]["replicas"] == 1 == first["spec"]["fallback"]["replicas"]
    behavior = first["spec"]["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
    assert behavior["scaleUp"]["stabilizationWindowSeconds"] == 0
    assert behavior["scaleDown"]["stabilizationWindowSeconds"] == 120
    assert behavior["scaleDown"]["policies"] == [{"type": "Pods", "value": 1, "periodSeconds": 60}]
    assert math.isclose(float(first["spec"]["triggers"][0]["metadata"]["threshold"]), 1.5)


def test_hours_of_the_day_have_their_numbers() -> None:
    first, second = of_kind(rendered(values("keda")), "ScaledObject")
    crons = [each["metadata"] for each in first["spec"]["triggers"] if each["type"] == "cron"]
    assert {(each["start"], each["end"]): each["desiredReplicas"] for each in crons} == {
        ("0 8 * * *", "0 18 * * *"): "2",
        ("0 18 * * *", "0 0 * * *"): "3",
        ("0 22 * * *", "0 6 * * *"): "1",
    }
    assert {each["timezone"] for each in crons} == {"Etc/UTC"}
    assert "cron" not in {each["type"] for each in second["spec"]["triggers"]}


def test_alerts_and_dashboards_are_the_package_s() -> None:
    resources = rendered(values("monitored"))
    [rule] = of_kind(resources, "PrometheusRule")
    deploy = CHART.parents[1]
    assert rule["spec"] == yaml.safe_load((deploy / "prometheus" / "alerts.yml").read_text())
    for name in ("penstock", "penstock-gateway"):
        [board] = [each for each in resources if each["metadata"]["name"] == f"demo-dashboard-{name}"]
        told = json.loads(board["data"][f"{name}.json"])
        assert told == json.loads((deploy / "grafana" / f"{name}.json").read_text())


FLEET = """
[gateway]
policy = "prefix"
[[gateway.price]]
model = "chat"
input = 0.1
output = 0.4
[[model]]
name = "chat"
model = "haiku"
replicas = { least = 0, most = 4, hours = { 8-18 = 2 } }
cores = 2
memory = "2GiB"
options = { max_num_seqs = 16, kv_cache_dtype = "int8" }
cost_per_hour = 0.25
[[model]]
name = "other"
model = "haiku"
"""


def test_a_fleet_of_one_machine_is_one_of_a_cluster(
    penstock_here: Callable[..., "subprocess.CompletedProcess[str]"], tmp_path: Path
) -> None:
    (tmp_path / "fleet.toml").write_text(FLEET)
    refused = penstock_here("fleet", "render", str(tmp_path / "fleet.toml"))
    assert refused.returncode != 0 and "--keys-secret" in refused.stderr
    told = penstock_here("fleet", "render", str(tmp_path / "fleet.toml"), "--keys-secret", "keys")
    assert told.returncode == 0, told.stderr
    resources = rendered(json.loads(told.stdout))
    assert [each["metadata"]["name"] for each in of_kind(resources, "ScaledObject")] == ["demo-chat"]
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    for name, _, container in pods(resources):
        command, *arguments = container["args"]
        found = commands[command].make_context(command, arguments).params
        if name == "demo-chat":
            assert (found["max_num_seqs"], found["kv_cache_dtype"], found["cost_per_hour"]) == (16, "int8", 0.25)
            assert container["resources"]["limits"] == {"memory": "2048Mi"}
    for each in resources:
        if each["kind"] not in FOREIGN:
            kubernetes_validate.validate(each, VERSION, strict=True)


BASE: dict[str, Any] = {"models": [{"name": "chat", "model": "haiku"}], "gateway": {"noAuth": True}}
BOUNDS = {"least": 0, "most": 4}


@pytest.mark.parametrize(
    ("changed", "cause"),
    [
        ({"models": []}, "minItems"),
        ({"models": [{"name": "no name"}]}, "does not match pattern"),
        ({"models": [{"name": "a", "replicas": 0}]}, "replicas"),
        ({"models": [{"name": "a", "nodes": 2}]}, "additional properties 'nodes' not allowed"),
        ({"models": [{"name": "a", "options": {"port": 1}}]}, "invalid propertyName 'port'"),
        ({"models": [{"name": "a.b"}, {"name": "A-B"}]}, "Two models are called a-b in names of Kubernetes"),
        ({"models": [{"name": "a", "replicas": BOUNDS}]}, "say by what it follows the load"),
        (
            {"models": [{"name": "a", "replicas": {"least": 3, "most": 2}}], "scaling": {"by": "keda"}},
            "a has from 3 to 2 replicas",
        ),
        ({"models": [{"name": "a", "replicas": BOUNDS}], "scaling": {"by": "hpa"}}, "needs scaling.by: keda"),
        (
            {"models": [{"name": "a", "replicas": {**BOUNDS, "hours": {"8-18": 2}}}], "scaling": {"by": "hpa"}},
            "a has numbers of replicas by the hour, which need scaling.by: keda",
        ),
        ({"models": [{"name": "a", "replicas": {**BOUNDS, "hours": {"8-25": 2}}}]}, "invalid propertyName '8-25'"),
        ({"models": [{"name": "a", "replicas": {**BOUNDS, "hours": {"8-9": 0}}}]}, "minimum"),
        (
            {"models": [{"name": "a", "replicas": {**BOUNDS, "hours": {"8-9": 5}}}], "scaling": {"by": "keda"}},
            "a has 5 replicas at least from 8-9 o'clock, and 0 to 4 at any time",
        ),
        (
            {"models": [{"name": "a", "replicas": {**BOUNDS, "hours": {"0-24": 2}}}], "scaling": {"by": "keda"}},
            "a has a number of replicas for the whole day",
        ),
        ({"gateway": {}}, "Nothing says who may ask"),
        ({"gateway": {"noAuth": True, "keysSecret": "k"}}, "exclude one another"),
        ({"inferencePool": {"enabled": True}, "gateway": {}}, "Nothing says who may ask"),
        (
            {"gateway": {"databaseSecret": "d"}, "monitoring": {"serviceMonitors": True}},
            "give Prometheus one in monitoring.keySecret",
        ),
        ({"models": [{"name": "Gateway"}]}, "as the gateway is in names of Kubernetes"),
        ({"gateway": {"noAuth": True, "options": {"limits_store": "x"}}}, "invalid propertyName 'limits_store'"),
        ({"gateway": {"keysSecret": "k"}, "inferencePool": {"enabled": True}}, "requests go past the gateway"),
        (
            {"inferencePool": {"enabled": True}, "networkPolicy": {"enabled": True}},
            "name it in networkPolicy.alsoFrom",
        ),
        (
            {
                "models": [{"name": "a"}, {"name": "b"}],
                "inferencePool": {"enabled": True},
                "httpRoute": {"enabled": True, "parentRefs": [{"name": "public"}]},
            },
            "does not see which model a body names",
        ),
        ({"gateway": {"noAuth": True, "file": {"replica": []}}}, "invalid propertyName 'replica'"),
        ({"httpRoute": {"enabled": True}}, "parentRefs"),
        ({"image": {"digest": "sha256:1"}}, "does not match pattern"),
        ({"unknown": 1}, "additional properties 'unknown' not allowed"),
    ],
)
def test_what_would_not_run_is_refused(changed: dict[str, Any], cause: str) -> None:
    with pytest.raises(helm.HelmError, match=re.escape(cause)):
        rendered({**BASE, **changed})


def test_pods_of_one_replica_find_each_other() -> None:
    """What a LeaderWorkerSet starts are commands of this package, and its pods are valid ones."""
    resources = rendered(values("machines"))
    sets = {
        each["metadata"]["name"]: each["spec"]["leaderWorkerTemplate"] for each in of_kind(resources, "LeaderWorkerSet")
    }
    assert {name: each["size"] for name, each in sets.items()} == {"demo-large": 3, "demo-chat": 2}
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    stages = {"demo-large": 6, "demo-chat": 2}
    for name, each in sets.items():
        [leader], [worker] = (each[role]["spec"]["containers"] for role in ("leaderTemplate", "workerTemplate"))
        told = commands["serve"].make_context("serve", leader["args"][1:]).params
        assert (told["machines"], int(told["pipeline_parallel_size"])) == (each["size"], stages[name])
        address = f"$(LWS_LEADER_ADDRESS):{told['machines_at'].rpartition(':')[2]}"
        assert worker["args"][:3] == ["join", address, leader["args"][1]]
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("LWS_WORKER_INDEX", "1")
            joined = commands["join"].make_context("join", worker["args"][1:]).params
        assert joined["machine"] == 1 and joined["machines_secret_file"] == told["machines_secret_file"]
        for role in ("leaderTemplate", "workerTemplate"):
            pod = {"apiVersion": "v1", "kind": "Pod", **each[role]}
            kubernetes_validate.validate({**pod, "metadata": {"name": "pod", **pod["metadata"]}}, VERSION, strict=True)
        # Gateways ask the pods that serve alone.
        labels = [each[role]["metadata"]["labels"] for role in ("leaderTemplate", "workerTemplate")]
        [service] = [one for one in of_kind(resources, "Service") if one["metadata"]["name"] == name]
        chosen = service["spec"]["selector"].items()
        assert [chosen <= one.items() for one in labels] == [True, False]
    [scaled] = of_kind(resources, "ScaledObject")
    assert scaled["spec"]["scaleTargetRef"]["kind"] == "LeaderWorkerSet"


def test_several_machines_without_a_secret_are_refused() -> None:
    given = values("machines")
    del given["machinesSecret"]
    with pytest.raises(Exception, match="large is on several machines, which have to have a secret in common"):
        rendered(given)
