"""Resources that Kubernetes itself does not have are as the projects that define them publish."""

import copy
import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deploy.test_chart import FOREIGN, VARIANTS, Resource, rendered, values
from support.coding_agents import FOLDER

MODELS = FOLDER / "node_modules" / "@kubernetes-models"
# By the group of their API. None has InferencePool, see `test_inference_pool.py`.
PACKAGES = {
    "keda.sh": "keda",
    "monitoring.coreos.com": "prometheus-operator",
    "gateway.networking.k8s.io": "gateway-api",
}
PUBLISHED = {kind for kind, version in FOREIGN.items() if version.partition("/")[0] in PACKAGES}
# Their fields may have any name; so may those of a trigger's metadata.
MAPS = {"annotations", "labels", "matchLabels"}


@pytest.fixture(scope="module")
def resources() -> list[Resource]:
    """Those of all variants."""
    if shutil.which("node") is None or not MODELS.exists():
        missing = "published schemas are missing; install Node.js, then run make clients"
        if os.environ.get("CI"):
            pytest.fail(missing)
        pytest.skip(missing)
    return [each for name in VARIANTS for each in rendered(values(name)) if each["kind"] in PUBLISHED]


def problems(resources: list[Resource]) -> list[str]:
    """What is wrong with each, empty where nothing is."""
    command = ["node", str(Path(__file__).with_name("published.cjs")), str(MODELS), json.dumps(PACKAGES)]
    told = subprocess.run(command, input=json.dumps(resources), capture_output=True, text=True, check=False)
    assert told.returncode == 0, told.stderr
    found: list[str] = json.loads(told.stdout)
    return found


def fields(value: Any, within: str = "") -> Iterator[str]:
    """Names of all fields, but for those that may have any name."""
    if isinstance(value, list):
        for each in value:
            yield from fields(each, within)
    elif isinstance(value, dict):
        for name, each in value.items():
            yield name
            if name not in MAPS and (within, name) != ("triggers", "metadata"):
                yield from fields(each, name)


def known(resource: Resource) -> set[str]:
    """Names of all fields that a kind has. Kubernetes drops others without a word."""
    group = resource["apiVersion"].partition("/")[0]
    first = MODELS / PACKAGES[group] / resource["apiVersion"] / f"{resource['kind']}.d.ts"
    found, left, read = set[str](), [first], set[Path]()
    while left:
        path = left.pop()
        read.add(path)
        text = path.read_text()
        found.update(re.findall(r'^\s*"(\w+)"\??:', text, re.MULTILINE))
        # Types are in files of their own, also those of other packages.
        for name in re.findall(r'from "([^"]+)";', text):
            base = path.parent / name if name.startswith(".") else MODELS.parent / name
            file = Path(os.path.normpath(str(base).removesuffix(".js") + ".d.ts"))
            left += [file] if file.exists() and file not in read else []
    return found


def test_each_kind_is_as_it_is_published(resources: list[Resource]) -> None:
    assert {each["kind"] for each in resources} == PUBLISHED
    assert problems(resources) == [""] * len(resources)
    for each in resources:
        assert set(fields(each)) <= known(each), each["kind"]


def test_what_is_wrong_is_found(resources: list[Resource]) -> None:
    wrong = []
    for kind in sorted(PUBLISHED):
        changed = copy.deepcopy(next(each for each in resources if each["kind"] == kind))
        changed["spec"] = []
        wrong.append(changed)
    assert all("spec" in each for each in problems(wrong))
    scaled = copy.deepcopy(next(each for each in resources if each["kind"] == "ScaledObject"))
    scaled["spec"]["advanced"]["horizontalPodAutoscalerConfig"]["behaviour"] = {}
    assert not set(fields(scaled)) <= known(scaled)
