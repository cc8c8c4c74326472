"""What `penstock tenant …` and `penstock key --project` do."""

import contextlib
import getpass
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from penstock.assembly.gateway import open_database
from penstock.core.errors import ConfigurationError, InvalidParameter
from penstock.tenancy.settings import Settings, changed

if TYPE_CHECKING:
    from penstock.database.connection import Database
    from penstock.tenancy.records import Organisation, Project, Role
    from penstock.tenancy.registry import Registry

console = Console(highlight=False)
_LISTS = ("models", "endpoints", "privacy_classes")


class _Opened(NamedTuple):
    database: "Database"
    registry: "Registry"
    actor: str


@contextlib.contextmanager
def _opened(url: str | None) -> Iterator[_Opened]:
    """The database with this version's tables. Raises ConfigurationError, DatabaseUnavailable."""
    if url is None:
        raise ConfigurationError("Which database? Give --database URL, or set PENSTOCK_DATABASE, as for the gateways.")
    database = open_database(url)
    from penstock.tenancy.registry import Registry

    try:
        database.upgrade()
        yield _Opened(database, Registry(database), f"cli/{getpass.getuser()}")
    finally:
        database.close()


def run_add(url: str | None, name: str, given: Sequence[str]) -> None:
    """`penstock tenant add`"""
    with _opened(url) as opened:
        settings = _set(Settings(), given, of_project="." in name)
        if "." in name:
            opened.registry.create_project(opened.actor, name, settings)
            typer.echo(f"There is a project {name} now; `penstock key NAME --project {name}` makes a key of it.")
        else:
            opened.registry.create_organisation(opened.actor, name, settings)
            typer.echo(f"There is an organisation {name} now; `penstock tenant add {name}.PROJECT` adds a project.")


def run_list(url: str | None) -> None:
    """`penstock tenant list`"""
    with _opened(url) as opened:
        found = opened.registry.changes()
    table = _table("organisation or project", "made", "closed", "settings")
    owners: list[Organisation | Project] = [*found.organisations, *found.projects]
    for each in sorted(owners, key=lambda one: one.name):
        table.add_row(each.name, _moment(each.created_at), _moment(each.closed_at), _shown(each.settings))
    console.print(table)


def run_set(url: str | None, name: str, given: Sequence[str]) -> None:
    """`penstock tenant set`"""
    if not given:
        raise InvalidParameter(
            "FIELD=VALUE", f"nothing is to be set; there are {', '.join(Settings.__struct_fields__)}."
        )
    with _opened(url) as opened:
        registry, actor = opened.registry, opened.actor
        if name.startswith("key_"):
            settings = registry.set_key(actor, name, _set(registry.key(name).settings, given)).settings
        elif "." in name:
            wanted = _set(registry.project(name).settings, given, of_project=True)
            settings = registry.set_project(actor, name, wanted).settings
        else:
            settings = registry.set_organisation(
                actor, name, _set(registry.organisation(name).settings, given)
            ).settings
    typer.echo(f"{name}: {_shown(settings) or 'nothing is set'}")


def run_split(url: str | None, name: str, percent: float) -> None:
    """`penstock tenant split`"""
    with _opened(url) as opened:
        opened.registry.set_split(opened.actor, name, percent)
    typer.echo(f"The split {name} is {percent:g}% from now on, where a gateway's file has it.")


def run_close(url: str | None, name: str) -> None:
    """`penstock tenant close`"""
    with _opened(url) as opened:
        opened.registry.close(opened.actor, name)
    typer.echo(f"{name} is closed; none of its keys is taken.")


def run_keys(url: str | None, project: str | None) -> None:
    """`penstock tenant keys`"""
    with _opened(url) as opened:
        found = opened.registry.list_keys(project)
    table = _table("id", "begins with", "name", "project or role", "", "last used", "settings")
    for key, last_used_on in ((each.key, each.last_used_on) for each in reversed(found)):
        expires = "" if key.expires_at is None else f"until {_moment(key.expires_at)}"
        state = expires if key.revoked_at is None else f"revoked {_moment(key.revoked_at)}"
        used = last_used_on or ""
        table.add_row(key.id, key.shown, key.name, key.project or key.role, state, used, _shown(key.settings))
    console.print(table)


def run_new_key(url: str | None, name: str, project: str | None, role: "Role", seconds: float | None) -> None:
    """`penstock key NAME` with a project, or for an administrator."""
    with _opened(url) as opened:
        key, secret = opened.registry.create_key(opened.actor, name, project, role=role, seconds=seconds)
    typer.echo(f"{key.id} is a key of {project or f'an {role}'} now. The key, which is shown only now:\n", err=True)
    typer.echo(secret)


def run_rotate(url: str | None, identifier: str, overlap: float) -> None:
    """`penstock tenant rotate`"""
    with _opened(url) as opened:
        key, secret = opened.registry.rotate_key(opened.actor, identifier, overlap)
        old = opened.registry.key(identifier)
    typer.echo(
        f"{key.id} takes the place of {identifier}, which is taken until {_moment(old.expires_at)}. The new key, which "
        "is shown only now:\n",
        err=True,
    )
    typer.echo(secret)


def run_revoke(url: str | None, identifier: str, *, end_streams: bool) -> None:
    """`penstock tenant revoke`"""
    with _opened(url) as opened:
        key = opened.registry.revoke_key(opened.actor, identifier, ends_streams=end_streams)
    typer.echo(f"{identifier} ({key.shown}…) is revoked since {_moment(key.revoked_at)}.")


def run_audit(url: str | None, most: int) -> None:
    """`penstock tenant audit`"""
    with _opened(url) as opened:
        found = opened.registry.audit(None, most)
    table = _table("at", "by", "what", "of", "detail")
    for entry in reversed(found):
        table.add_row(_moment(entry.at), entry.actor, entry.action, entry.subject, escape(bytes(entry.detail).decode()))
    console.print(table)


def run_statement(url: str | None, period: str, organisation: str | None, csv: Path | None, json: Path | None) -> None:
    """`penstock tenant statement`"""
    with _opened(url) as opened:
        from penstock.tenancy.statement import statement

        if organisation is not None:
            opened.registry.organisation(organisation)
        found = statement(opened.database, period, organisation)
    if csv is not None:
        _write(csv, found.csv)
    if json is not None:
        _write(json, msgspec.json.encode(found).decode() + "\n")
    if csv is not None or json is not None:
        return
    table = _table("project", "key", "model", "requests", "prompt tokens", "cached", "output tokens", "cost")
    for line in found.lines:
        counts = (line.requests, line.prompt_tokens, line.cached_tokens, line.output_tokens)
        cells = [f"{each:,}" for each in counts]
        table.add_row(line.project, line.key_name or line.key, line.model, *cells, f"{line.cost:f}")
    console.print(table)
    console.print(f"{period}: {found.requests:,} requests, {found.cost:f}", soft_wrap=True)
    for what, count in (
        ("had no price, and are not in the cost", sum(line.unpriced_requests for line in found.lines)),
        (
            "had answers that did not say what they used; it was estimated",
            sum(line.estimated_requests for line in found.lines),
        ),
    ):
        if count:
            console.print(f"{count:,} of them {what}.", soft_wrap=True)


def run_spending(url: str | None, days: int, by: str, of: str | None) -> None:
    """`penstock tenant spending`"""
    today = datetime.now(UTC).date()
    with _opened(url) as opened:
        from penstock.tenancy.spending import spending

        if of is not None:
            opened.registry.owner(of)
        found = spending(opened.database, f"{today - timedelta(days=days - 1)}", f"{today}", by, of)
    table = _table("day", by, "requests", "prompt tokens", "cached", "output tokens", "cost")
    for each in found.days:
        counts = (each.requests, each.prompt_tokens, each.cached_tokens, each.output_tokens)
        name = "all others" if each.name is None else escape(each.name)
        table.add_row(each.day, name, *(f"{count:,}" for count in counts), f"{each.cost:f}")
    console.print(table)
    console.print(f"{found.first} to {found.last}: {found.requests:,} requests, {found.cost:f}", soft_wrap=True)


def run_migrate(url: str | None, version: str | None) -> None:
    """`penstock tenant migrate`"""
    if url is None:
        raise ConfigurationError("Which database? Give --database URL, or set PENSTOCK_DATABASE, as for the gateways.")
    database = open_database(url)
    try:
        if version is None:
            database.upgrade()
        else:
            database.migrate(version)
    finally:
        database.close()
    which = "this program's version" if version is None else f"version {version}"
    typer.echo(f"{database.name} has tables of {which}.")


def _set(settings: Settings, given: Sequence[str], *, of_project: bool = False) -> Settings:
    """Settings with those of the command line. Raises InvalidParameter."""
    fields: dict[str, Any] = {}
    for each in given:
        name, mark, value = each.partition("=")
        if not mark:
            raise InvalidParameter(name[:80], "must be FIELD=VALUE, such as requests_per_minute=600.")
        fields[name] = _value(name, value)
    return changed(settings, fields, of_project=of_project, as_text=True)


def _value(name: str, value: str) -> Any:
    if value == "":
        return None
    if name in _LISTS:
        return value.split(",")
    return value


def _shown(settings: Settings) -> str:
    fields: dict[str, Any] = msgspec.to_builtins(settings)
    texts = {name: ",".join(each) if isinstance(each, list | tuple) else each for name, each in fields.items()}
    return ", ".join(f"{name}={text}" for name, text in texts.items())


def _table(*heads: str) -> Table:
    """A table in which nothing is cut off; what is copied from it stays in one line."""
    table = Table(box=SIMPLE_HEAD, padding=0, pad_edge=False)
    for head in heads:
        table.add_column(head, overflow="fold", no_wrap=head in ("id", "begins with", "what"))
    return table


def _moment(seconds: float | None) -> str:
    return "" if seconds is None else datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S")


def _write(path: Path, content: str) -> None:
    if str(path) == "-":
        typer.echo(content, nl=False)
        return
    try:
        path.write_text(content)
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be written ({error.strerror}).") from error
