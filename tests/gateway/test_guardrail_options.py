"""What can be asked for of guardrails, and which requests each one is for."""

from pathlib import Path
from typing import Any

import pytest

from penstock.access.tenants import Tenant
from penstock.core.errors import ConfigurationError
from penstock.gateway.guardrail_options import Guardrail, check_guardrails
from penstock.gateway.options import read_fleet


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"name": ""}, "must have a name of 1 to 64"),
        ({"url": "127.0.0.1:9"}, "write one like http://127.0.0.1:9000/check"),
        ({"url": "http://a/b?c"}, "without a query"),
        ({"seconds": 0.0}, "has 0 seconds"),
        ({"window": 0, "when": "after"}, "has the window 0"),
        ({"window": 5}, "of one that looks at answers"),
    ],
)
def test_what_cannot_be_asked_for(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        Guardrail(**{"name": "a", "url": "http://a", **fields}).check()


def test_two_of_one_name() -> None:
    with pytest.raises(ConfigurationError, match="Two guardrails have the name 'a'"):
        check_guardrails([Guardrail(name="a", url="http://a"), Guardrail(name="a", url="http://b")])


def test_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "gateway.toml"
    head = '[[replica]]\nurl = "http://a"\n[[guardrail]]\nname = "pii"\nurl = "https://b/check"\n'
    file.write_text(f'{head}when = "both"\nwindow = 400\nkey_variable = "PII_KEY"\n')
    (read,) = read_fleet(file).check().guardrail
    assert read == Guardrail(name="pii", url="https://b/check", when="both", window=400, key_variable="PII_KEY")
    for more, says in (
        ('key_variable = "a-b"\n', "key_variable is 'a-b', which is no name of a variable"),
        ('when = "never"\n', "cannot be used"),
        ('on_failure = "ajar"\n', "cannot be used"),
        ("colour = 1\n", "cannot be used"),
    ):
        file.write_text(head + more)
        with pytest.raises(ConfigurationError, match=says):
            read_fleet(file).check()


@pytest.mark.parametrize(
    ("tenants", "models", "tenant", "may_be", "is_for"),
    [
        ((), (), Tenant(), set(), True),
        (("acme",), (), Tenant(name="acme.web", organisation="acme"), {"m"}, True),
        (("acme.web",), (), Tenant(name="acme.web", organisation="acme"), {"m"}, True),
        (("acme.web",), (), Tenant(name="acme.app", organisation="acme"), {"m"}, False),
        (("acme", ""), (), Tenant(), {"m"}, False),
        ((), ("m",), Tenant(), {"n"}, False),
        ((), ("m",), Tenant(), {"n", "m"}, True),
        ((), ("m",), Tenant(), set(), True),
    ],
)
def test_which_requests_one_is_for(
    tenants: tuple[str, ...], models: tuple[str, ...], tenant: Tenant, may_be: set[str], is_for: bool
) -> None:
    rail = Guardrail(name="a", url="http://a", tenants=tenants, models=models)
    assert (rail.is_for(tenant) and rail.is_for_one_of(may_be)) == is_for
