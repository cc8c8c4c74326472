"""`penstock tenant`, and `penstock key` for a database: what people type, and what they are told."""

import contextlib
import csv
import io
import json
import re
import subprocess
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from penstock.core.usage import Used
from penstock.database.connection import Database
from penstock.tenancy.directory import Directory
from penstock.tenancy.entries import Entry
from penstock.tenancy.ledger import enter
from penstock.tenancy.registry import Registry

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def here(penstock_here: Run, tmp_path: Path) -> Callable[..., str]:
    """Runs a command with a database, and returns what it writes; the last line of its errors where it fails."""
    url = f"sqlite:///{tmp_path / 'tenants.sqlite'}"

    def run(*arguments: str) -> str:
        result = penstock_here(*arguments, "--database", url)
        if result.returncode == 0:
            return result.stdout
        assert result.returncode == 2, result.stderr
        (line,) = result.stderr.strip().splitlines()
        return line

    return run


def test_from_an_organisation_to_a_statement(here: Callable[..., str], tmp_path: Path) -> None:
    assert "There is an organisation acme now" in here("tenant", "add", "acme", "budget_per_month=50.5")
    assert "There is a project acme.web now" in here("tenant", "add", "acme.web", "weight=2", "models=a,b")
    secret = here("key", "site", "--project", "acme.web", "--days", "1").strip()
    assert re.fullmatch(r"penstock-[A-Za-z0-9_-]{43}", secret)
    listed = here("tenant", "list")
    assert "budget_per_month=50.5" in listed and "models=a,b" in re.sub(r"\s+", "", listed)
    database = Database.open(str(tmp_path / "tenants.sqlite"))
    registry, directory = Registry(database), Directory()
    directory.learn(registry.changes())
    tenant = directory.find(secret.encode())
    assert (tenant.name, tenant.weight, tenant.permits.models) == ("acme.web", 2.0, frozenset("ab"))
    (key,) = registry.changes().keys
    shown = here("tenant", "keys", "acme.web")
    assert key.id in shown and key.shown in shown and secret not in shown
    assert here("tenant", "set", key.id, "requests_per_minute=5", "tokens_per_minute=70").strip() == (
        f"{key.id}: requests_per_minute=5, tokens_per_minute=70"
    )
    assert here("tenant", "set", key.id, "requests_per_minute=", "tokens_per_minute=").strip() == (
        f"{key.id}: nothing is set"
    )
    new = here("tenant", "rotate", key.id, "--overlap", "60").strip()
    directory.learn(registry.changes())
    assert directory.find(new.encode()).name == directory.find(secret.encode()).name
    assert "is revoked since" in here("tenant", "revoke", key.id, "--end-streams")
    fields = {"at": 1_795_867_200.0, "organisation": "acme", "project": "acme.web", "key": key.id, "model": "a"}
    used = {"replica": "r", "outcome": "answered", "used": Used(1000, 10, 50), "is_estimated": True, "cost": 1_500_000}
    enter(database, [Entry(id="one", **fields, **used)])
    told = here("tenant", "statement", "2026-11")
    assert "1,000" in told and "2026-11: 1 requests, 0.0000015" in told and "it was estimated" in told
    (row,) = csv.DictReader(io.StringIO(here("tenant", "statement", "2026-11-28", "--csv", "-")))
    assert (row["key_name"], row["cost"], row["cached_tokens"]) == ("site", "0.0000015", "10")
    path = tmp_path / "november.json"
    assert here("tenant", "statement", "2026-11", "--organisation", "acme", "--json", str(path)) == ""
    assert json.loads(path.read_text())["cost"] == "0.0000015"
    assert "is closed" in here("tenant", "close", "acme")
    audit = re.sub(r"\s+", "", here("tenant", "audit", "--most", "3"))
    assert "organisation.close" in audit and "key.revoke" in audit and "project.create" not in audit
    assert "tables of version base" in here("tenant", "migrate", "--to", "base")
    assert "tables of this program's version." in here("tenant", "migrate")
    assert registry.changes().keys == []
    database.close()


def test_what_was_used_of_late(here: Callable[..., str], tmp_path: Path) -> None:
    here("tenant", "add", "acme")
    here("tenant", "add", "acme.web")
    here("key", "site", "--project", "acme.web")
    with contextlib.closing(Database.open(str(tmp_path / "tenants.sqlite"))) as database:
        (key,) = Registry(database).changes().keys
        # What follows may run on the next day.
        at = datetime.now(UTC)
        fields = {"organisation": "acme", "project": "acme.web", "key": key.id, "replica": "r", "outcome": "answered"}
        used = {"used": Used(1000, 10, 50), "is_estimated": False, "cost": 1_500_000}
        days = (at.timestamp(), at.timestamp() - 50 * 86400)
        enter(database, [Entry(id=f"{each}", at=each, model="a[b]", **fields, **used) for each in days])
    spent = here("tenant", "spending", "acme.web", "--days", "2")
    assert re.search(rf"{at:%Y-%m-%d} +a\[b\] +1 +1,000", spent) and "1 requests, 0.0000015" in spent
    assert "2 requests, 0.000003" in here("tenant", "spending", "--days", "60", "--by", "organisation")
    assert f"{at:%Y-%m-%d}" in here("tenant", "keys", "acme.web")


def test_what_people_get_wrong(here: Callable[..., str], penstock_here: Run, tmp_path: Path) -> None:
    here("tenant", "add", "acme")
    for arguments, says in (
        (("tenant", "add", "acme"), "There is an organisation acme already"),
        (("tenant", "add", "acme.web", "models"), "models: must be FIELD=VALUE"),
        (("tenant", "add", "acme.web", "colour=red"), "colour: is no setting; there are models"),
        (("tenant", "add", "acme.web", "requests_per_minute=many"), "requests_per_minute: cannot be used"),
        (("tenant", "add", "acme.web", "budget_per_day=-1"), "budget_per_day: is -1"),
        (("tenant", "add", "none.web"), "There is no organisation 'none'"),
        (("tenant", "set", "acme"), "nothing is to be set"),
        (("tenant", "keys", "acme.none"), "There is no project 'acme.none'"),
        (("tenant", "revoke", "key_0"), "There is no key 'key_0'"),
        (("tenant", "spending", "none"), "There is no organisation 'none'"),
        (("tenant", "spending", "--by", "colour"), "by: is 'colour'"),
        (("tenant", "statement", "November"), "give a month as 2026-01"),
        (("tenant", "statement", "2026-11", "--organisation", "none"), "There is no organisation 'none'"),
        (("tenant", "statement", "2026-11", "--csv", "/nowhere/a.csv"), "/nowhere/a.csv cannot be written"),
        (("tenant", "migrate", "--to", "77"), "There is no version '77' of tables"),
        (("key", "a", "--project", "acme.none"), "There is no project 'acme.none'"),
        (("key", "a", "--project", "acme.web", "--admin"), "give one of the three options"),
        (("key", "a", "--admin", "--weight", "2"), "--weight is for keys in a file"),
        (("key", "a", "--days", "2"), "--days goes with --project"),
    ):
        assert says in here(*arguments), arguments
    nowhere = penstock_here("tenant", "list")
    assert nowhere.returncode == 2 and "Which database? Give --database URL" in nowhere.stderr
    away = penstock_here("tenant", "list", "--database", f"postgresql://me:secret@/name?host={tmp_path}")
    assert away.returncode != 0 and "does not answer" in away.stderr and "secret" not in away.stderr
