"""The compose file: valid, with commands that exist, and figures that come from this checkout."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import typer
import yaml

from penstock.cli.main import app

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "deploy" / "compose"
FILE = FOLDER / "compose.yaml"
ENVIRONMENT = {"PENSTOCK_API_KEY": "a key", "PENSTOCK_JOIN_TOKEN": "a token"}


def read() -> dict[str, Any]:
    """The file with its variables, which have the values of ENVIRONMENT, and otherwise their defaults."""

    def value(found: re.Match[str]) -> str:
        name, default = found.group("name", "default")
        assert name in ENVIRONMENT or default is not None, f"{name} has no value"
        return ENVIRONMENT.get(name) or default or ""

    text = re.sub(r"\$\{(?P<name>[A-Z_]+)(?::-(?P<default>[^}]*)|:\?[^}]*)\}", value, FILE.read_text())
    assert "${" not in text
    read: dict[str, Any] = yaml.safe_load(text)
    return read


def test_it_is_valid() -> None:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", str(FILE)]
    told = subprocess.run(command, capture_output=True, text=True, check=False)
    assert told.returncode == 0, told.stdout


def test_commands_take_what_services_are_started_with() -> None:
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    services = read()["services"]
    for name, joins in (("gateway", None), ("replica", ["http://gateway:8080"])):
        command, *arguments = services[name]["command"]
        found = commands[command].make_context(command, arguments).params
        assert found["host"] == "0.0.0.0" and found.get("join") == joins
        # What runs has its time before the container is killed, and what is written then has, too.
        grace = int(services[name]["stop_grace_period"].removesuffix("s"))
        assert grace >= found["drain_timeout"] + 20


def test_only_the_gateway_and_the_dashboards_are_reached_from_outside() -> None:
    services = read()["services"]
    assert {name for name, each in services.items() if "ports" in each} == {"gateway", "grafana"}
    assert services["gateway"]["environment"]["PENSTOCK_API_KEY"] == "a key"
    for name in ("gateway", "replica"):
        each = services[name]
        assert each["read_only"] and each["cap_drop"] == ["ALL"] and each["environment"]["PENSTOCK_JOIN_TOKEN"]


def test_files_that_are_mounted_are_there() -> None:
    mounted = [
        volume.split(":")[0]
        for each in read()["services"].values()
        for volume in each.get("volumes", ())
        if volume.startswith(".")
    ]
    assert len(mounted) == 5 and all((FOLDER / each).exists() for each in mounted)


def test_prometheus_scrapes_services_that_there_are() -> None:
    read_file, services = yaml.safe_load((FOLDER / "prometheus.yml").read_text()), read()["services"]
    gateway, replica = read_file["scrape_configs"]
    assert gateway["static_configs"] == [{"targets": ["gateway:8080"]}]
    assert replica["dns_sd_configs"][0]["names"] == ["replica"] and {"gateway", "replica"} <= set(services)
    assert gateway["authorization"]["credentials_file"] == "/run/secrets/api_key" and "api_key" in read()["secrets"]
    [rules] = read_file["rule_files"]
    assert any(volume.split(":")[1] == rules for volume in services["prometheus"]["volumes"])
