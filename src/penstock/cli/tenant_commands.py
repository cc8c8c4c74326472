"""`penstock tenant …`: organisations, projects, keys and what they have used, in the database of a gateway."""

from pathlib import Path
from typing import Annotated

import typer

DatabaseUrl = Annotated[
    str | None,
    typer.Option(
        "--database",
        metavar="URL",
        envvar="PENSTOCK_DATABASE",
        help="PostgreSQL, or a file of SQLite: that of the gateways.",
    ),
]
Setting = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="FIELD=VALUE", help="What is set, such as budget_per_month=50 or models=a,b; FIELD= takes it back."
    ),
]
KeyId = Annotated[str, typer.Argument(metavar="KEY", help="The id of a key, as `penstock tenant keys` lists it.")]

tenant = typer.Typer(no_args_is_help=True, help="Organisations, projects and keys in the database of a gateway.")


@tenant.command()
def add(
    name: Annotated[str, typer.Argument(help="Of an organisation, or ORGANISATION.PROJECT of a project.")],
    setting: Setting = None,
    database: DatabaseUrl = None,
) -> None:
    """Make an organisation, or a project of one."""
    from penstock.cli.tenants import run_add

    run_add(database, name, setting or ())


@tenant.command("list")
def list_(database: DatabaseUrl = None) -> None:
    """List organisations and projects, and what is set of them."""
    from penstock.cli.tenants import run_list

    run_list(database)


@tenant.command("set")
def set_(
    name: Annotated[str, typer.Argument(help="An organisation, a project, or the id of a key.")],
    setting: Setting = None,
    database: DatabaseUrl = None,
) -> None:
    """Change what is set of an organisation, a project or a key; running gateways follow within a second."""
    from penstock.cli.tenants import run_set

    run_set(database, name, setting or ())


@tenant.command()
def split(
    name: Annotated[str, typer.Argument(help="A [[split]] in the gateways' file.")],
    percent: Annotated[float, typer.Argument(help="Of the conversations that get the other model; 0 turns it off.")],
    database: DatabaseUrl = None,
) -> None:
    """Say how large a part of the requests gets another model; running gateways follow within a second."""
    from penstock.cli.tenants import run_split

    run_split(database, name, percent)


@tenant.command()
def close(
    name: Annotated[str, typer.Argument(help="An organisation or a project.")], database: DatabaseUrl = None
) -> None:
    """Take none of its keys any more. What it has used stays in the ledger."""
    from penstock.cli.tenants import run_close

    run_close(database, name)


@tenant.command()
def keys(
    project: Annotated[str | None, typer.Argument(help="List those of one project only.")] = None,
    database: DatabaseUrl = None,
) -> None:
    """List keys: whose they are, what they begin with, until when they are taken, and when they were used last."""
    from penstock.cli.tenants import run_keys

    run_keys(database, project)


@tenant.command()
def rotate(
    key: KeyId,
    overlap: Annotated[float, typer.Option(help="Seconds for which the old key is still taken.", min=0.0)] = 86400.0,
    database: DatabaseUrl = None,
) -> None:
    """Make a new key in the place of one, and print it once."""
    from penstock.cli.tenants import run_rotate

    run_rotate(database, key, overlap)


@tenant.command()
def revoke(
    key: KeyId,
    end_streams: Annotated[bool, typer.Option(help="End what is under way with it, too.")] = False,
    database: DatabaseUrl = None,
) -> None:
    """Take a key no longer; running gateways follow within a second."""
    from penstock.cli.tenants import run_revoke

    run_revoke(database, key, end_streams=end_streams)


@tenant.command()
def audit(
    most: Annotated[int, typer.Option(help="Records, the newest.", min=1, max=10000)] = 50,
    database: DatabaseUrl = None,
) -> None:
    """List what was changed by whom, and which keys were refused."""
    from penstock.cli.tenants import run_audit

    run_audit(database, most)


@tenant.command()
def statement(
    period: Annotated[str, typer.Argument(help="A month such as 2026-01, or a day such as 2026-01-31, in UTC.")],
    organisation: Annotated[str | None, typer.Option(help="Of one organisation only.")] = None,
    csv: Annotated[Path | None, typer.Option(metavar="FILE|-", help="Write it as CSV.")] = None,
    json: Annotated[Path | None, typer.Option(metavar="FILE|-", help="Write it as JSON.")] = None,
    database: DatabaseUrl = None,
) -> None:
    """Sum up what was used, by organisation, project, key and model."""
    from penstock.cli.tenants import run_statement

    run_statement(database, period, organisation, csv, json)


@tenant.command()
def price(
    url: Annotated[str, typer.Argument(help="A replica that has answered some of its usual requests.")],
    cost_per_hour: Annotated[
        str | None, typer.Option(help="Of its machine; without it, what the replica was started with.")
    ] = None,
    busy: Annotated[float, typer.Option(help="The part of the time in which the machine has work.")] = 1.0,
    api_key: Annotated[str | None, typer.Option(envvar="PENSTOCK_API_KEY", help="That the replica wants.")] = None,
) -> None:
    """Work out what a model's tokens cost on an own machine, for the gateway's file."""
    from penstock.cli.tenant_price import run_price

    run_price(url, cost_per_hour, busy, api_key)


@tenant.command()
def spending(
    of: Annotated[str | None, typer.Argument(help="Of one organisation or project only.")] = None,
    days: Annotated[int, typer.Option(help="The last ones, today among them, in UTC.", min=1, max=400)] = 30,
    by: Annotated[str, typer.Option(help="What is told apart: organisation, project or model.")] = "model",
    database: DatabaseUrl = None,
) -> None:
    """Show what was used on each day; of more than ten names, the others are one."""
    from penstock.cli.tenants import run_spending

    run_spending(database, days, by, of)


@tenant.command()
def migrate(
    to: Annotated[str | None, typer.Option(metavar="VERSION", help="Of the tables; the newest without.")] = None,
    database: DatabaseUrl = None,
) -> None:
    """Bring a database's tables to another version; a gateway that starts brings them to its own."""
    from penstock.cli.tenants import run_migrate

    run_migrate(database, to)
