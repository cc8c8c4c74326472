"""An InferencePool has the fields of its API (Gateway API Inference Extension, api/v1/inferencepool_types.go).

No package has that schema, and Kubernetes drops fields that it does not know without a word. So they stand here.
"""

import copy
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from deploy.test_chart import VARIANTS, Resource, of_kind, rendered, values


def fields(*needed: str, **known: object) -> dict[str, Any]:
    """The schema of an object with these fields and no others."""
    return {"type": "object", "properties": known, "required": list(needed), "additionalProperties": False}


TEXTS = {"type": "object", "additionalProperties": {"type": "string", "maxLength": 63}, "minProperties": 1}
PORT = fields("number", number={"type": "integer", "minimum": 1, "maximum": 65535})
NAME = {"type": "string", "pattern": "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", "maxLength": 63}
PICKER = fields(
    "name",
    # The API needs it for a Service, which is the default kind.
    "port",
    group={"const": ""},
    kind={"const": "Service"},
    name=NAME,
    port=PORT,
    failureMode={"enum": ["FailOpen", "FailClose"]},
)
POOL = Draft202012Validator(
    fields(
        "apiVersion",
        "kind",
        "metadata",
        "spec",
        apiVersion={"const": "inference.networking.k8s.io/v1"},
        kind={"const": "InferencePool"},
        metadata={"type": "object", "required": ["name"]},
        spec=fields(
            "selector",
            "targetPorts",
            # Since version 1.5 it may be missing, but most implementations need it.
            "endpointPickerRef",
            selector=fields("matchLabels", matchLabels=TEXTS),
            targetPorts={"type": "array", "items": PORT, "minItems": 1, "maxItems": 8, "uniqueItems": True},
            appProtocol={"enum": ["http", "kubernetes.io/h2c"]},
            endpointPickerRef=PICKER,
        ),
    )
)


@pytest.fixture(scope="module")
def pools() -> list[Resource]:
    """Those of all variants."""
    found = [each for name in VARIANTS for each in of_kind(rendered(values(name)), "InferencePool")]
    assert found
    return found


def test_pools_are_as_their_api_has_them(pools: list[Resource]) -> None:
    assert [error.message for each in pools for error in POOL.iter_errors(each)] == []


@pytest.mark.parametrize(
    ("place", "wrong"),
    [
        (("spec", "targetPortNumber"), 8000),
        (("spec", "targetPorts"), [8000]),
        (("spec", "endpointPickerRef", "failureMode"), "FailClosed"),
        (("spec", "endpointPickerRef", "portNumber"), 9002),
        (("apiVersion",), "inference.networking.x-k8s.io/v1alpha2"),
    ],
)
def test_what_older_versions_had_is_found(pools: list[Resource], place: tuple[str, ...], wrong: object) -> None:
    changed = within = copy.deepcopy(pools[0])
    for name in place[:-1]:
        within = within[name]
    within[place[-1]] = wrong
    assert not POOL.is_valid(changed)
