"""What a gateway is asked for, and what cannot be."""

from pathlib import Path

import pytest

from penstock.core.errors import ConfigurationError
from penstock.gateway.dispatch import Dispatch
from penstock.gateway.members import Members
from penstock.gateway.options import FleetOptions, ReplicaOptions, fleet_of

WHOLE = """
policy = "prefix"
key_variable = "ALL"

[[replica]]
url = "http://10.0.0.1:8000"

[[replica]]
url = "https://[::1]/llm/"
key_variable = "OWN"

[timeouts]
connect = 1

[hold]
seconds = 0
requests = 5

[retries]
most = 1
part = 0.5
"""


def test_a_file_has_everything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "fleet.toml"
    path.write_text(WHOLE)
    fleet = fleet_of(path, (), None)
    assert fleet.policy == "prefix" and fleet.hold.requests == 5 and fleet.retries.most == 1
    assert fleet.timeouts.connect == 1 and fleet.timeouts.idle == FleetOptions().timeouts.idle
    monkeypatch.setenv("ALL", "one")
    with pytest.raises(ConfigurationError, match="OWN is not in the environment; set it to the API key of https://"):
        Members(Dispatch(fleet), fleet)
    monkeypatch.setenv("OWN", "two")
    dispatch = Dispatch(fleet)
    Members(dispatch, fleet)
    replicas = dispatch.replicas.all
    assert [(each.name, each.key) for each in replicas] == [
        ("http://10.0.0.1:8000", "one"),
        ("https://[::1]/llm", "two"),
    ]
    # What the command line says counts.
    fleet = fleet_of(path, ["http://b:1"], "session")
    assert fleet.replica == (ReplicaOptions(url="http://b:1"),) and fleet.policy == "session"


PROVIDER = (
    "[[provider]]\nname = 'a'\napi = '{}'\n{}\n[[provider.model]]\nmodel = 'm'\nat = 'bedrock/m'\ninput = 1\noutput = 1"
)


def test_what_litellm_asks_may_have_no_key(tmp_path: Path) -> None:
    """Its library finds what such a provider wants in the environment."""
    path = tmp_path / "fleet.toml"
    path.write_text(PROVIDER.format("litellm", ""))
    assert fleet_of(path, (), None).provider[0].key_variable is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no replica; name one with --replica URL"),
        ("[[replica]]\nurl = 'http://a'\n[[replica]]\nurl = 'http://a:80/'", "http://a is given twice"),
        ("[[replica]]\nurl = 'a:80'", "'a:80' is no URL of a replica"),
        ("[[replica]]\nadress = 'a'", "unknown field `adress`"),
        ("[[replica]]\nurl = 'http://a'\nkey_variable = 'sk-1'", "no name of a variable"),
        ("policy = 'best'\n[[replica]]\nurl = 'http://a'", "no routing policy 'best'; there are round-robin,"),
        ("[[replica]]\nurl = 'http://a'\n[timeouts]\nidle = 0", "timeouts.idle is 0; it must be from 0.001"),
        ("[[replica]]\nurl = 'http://a'\n[timeouts]\nidle = nan", "timeouts.idle is nan"),
        ("[[replica]]\nurl = 'http://a'\n[hold]\nseconds = -1", "hold.seconds is -1"),
        ("[[replica]]\nurl = 'http://a'\n[hold]\nrequests = -1", "hold.requests is -1"),
        ("[[replica]]\nurl = 'http://a'\n[retries]\nmost = 11", "retries.most is 11"),
        ("[[replica]]\nurl = 'http://a'\n[retries]\npart = 2", "retries.part is 2"),
        (PROVIDER.format("openai", ""), "The provider a has no key_variable"),
        (PROVIDER.format("litellm", "key_variable = 'sk-1'"), "key_variable of the provider a is no name"),
        (PROVIDER.format("cohere", ""), "Invalid enum value 'cohere'"),
        ("replica = 1", "Expected `array`, got `int`"),
        ("x", "is no TOML"),
        ("\xff", "is not UTF-8"),
    ],
)
def test_what_cannot_be(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "fleet.toml"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(ConfigurationError) as caught:
        fleet_of(path, (), None)
    assert message in caught.value.message
    assert caught.value.message.count("\n") == 0


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot be read"):
        fleet_of(tmp_path / "none.toml", (), None)
