"""`penstock key`: makes a key for a file, or in the database of a gateway."""

from pathlib import Path
from typing import Annotated

import typer

from penstock.cli.tenant_commands import DatabaseUrl
from penstock.configuration.sizes import parse_size
from penstock.core.errors import ConfigurationError


def register(app: typer.Typer) -> None:
    """Add the command to those of `penstock`."""
    app.command()(key)


def key(
    name: Annotated[str, typer.Argument(help="The tenant; its name is in the log.")],
    weight: Annotated[
        float | None, typer.Option(help="How much of the engine it has beside others; 1 without.")
    ] = None,
    max_stored_bytes: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Of its files and results, such as 2GB; a share without.")
    ] = None,
    requests_per_minute: Annotated[
        int | None,
        typer.Option(help="That it may send in any 60 s, as a gateway counts; any number without.", min=1),
    ] = None,
    tokens_per_minute: Annotated[
        int | None, typer.Option(help="The same, of tokens in prompts and answers together.", min=1)
    ] = None,
    answer_cache_seconds: Annotated[
        int | None,
        typer.Option(help="For which a gateway may give it the same answer again; never without.", min=1),
    ] = None,
    for_others: Annotated[
        bool,
        typer.Option(help="Who shows it says for which tenant it asks: for a gateway that has keys of its own."),
    ] = False,
    add: Annotated[Path | None, typer.Option(metavar="FILE", help="Add the entry to this file.")] = None,
    project: Annotated[
        str | None, typer.Option(help="Make it one of this project's, in the database of a gateway.")
    ] = None,
    admin: Annotated[bool, typer.Option(help="Make it an administrator's, in the database of a gateway.")] = False,
    auditor: Annotated[bool, typer.Option(help="The same, of one who may look and change nothing.")] = False,
    days: Annotated[
        float | None, typer.Option(help="After which one in a database expires; never without.", min=0.0)
    ] = None,
    database: DatabaseUrl = None,
) -> None:
    """Make an API key, print it once, and print its entry for --api-key-file, or put that into a database."""
    from penstock.cli.keys import run_key

    in_file = {
        "--weight": weight,
        "--max-stored-bytes": max_stored_bytes,
        "--requests-per-minute": requests_per_minute,
        "--tokens-per-minute": tokens_per_minute,
        "--answer-cache-seconds": answer_cache_seconds,
        "--for-others": for_others or None,
        "--add": add,
    }
    if project is not None or admin or auditor:
        from penstock.cli.keys import run_key_in_database

        run_key_in_database(name, database, project, days, in_file, admin=admin, auditor=auditor)
        return
    if days is not None:
        raise ConfigurationError("--days goes with --project, --admin or --auditor: keys of files do not expire.")
    most = parse_size(max_stored_bytes, "--max-stored-bytes")
    limits = {
        "requests_per_minute": requests_per_minute,
        "tokens_per_minute": tokens_per_minute,
        "answer_cache_seconds": answer_cache_seconds,
    }
    run_key(name, weight, most, limits, add, for_others=for_others)
