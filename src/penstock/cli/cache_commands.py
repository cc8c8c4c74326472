"""`penstock cache …`: prefixes that are kept beyond the pool."""

from pathlib import Path
from typing import Annotated

import typer

from penstock.cli import options
from penstock.cli.groups import with_groups

Folder = Annotated[str, typer.Argument(metavar="DIR", help="The folder of --kv-disk, or file:///FOLDER of --kv-store.")]

cache = typer.Typer(
    no_args_is_help=True, help="Prefixes that `penstock serve --kv-disk DIR` or `--kv-store URL` keeps."
)


@cache.command("list")
def list_(
    folder: Folder,
    json_: Annotated[bool, typer.Option("--json", help="Print them as JSON.")] = False,
) -> None:
    """List the models that have prefixes in a folder, with what these take."""
    from penstock.cli.cache import folder_of, run_list

    run_list(folder_of(folder), as_json=json_)


@cache.command()
def clear(
    folder: Folder,
    name: Annotated[
        str | None, typer.Option(help="Only this part of the folder, as `penstock cache list` names it.")
    ] = None,
    tenant: Annotated[str | None, typer.Option(help="Only what is kept of this tenant's requests.")] = None,
    prefix_secret_file: Annotated[
        str | None, typer.Option(metavar="FILE", help="The secret that servers share, where they do; with --tenant.")
    ] = None,
) -> None:
    """Remove what is kept in a folder; running servers compute those prefixes again."""
    from penstock.cli.cache import folder_of, run_clear

    run_clear(folder_of(folder), name, tenant, prefix_secret_file)


@cache.command()
@with_groups
def explain(
    model: Annotated[str, typer.Argument(help="As for `penstock serve`, with the same options.")],
    file: Annotated[Path, typer.Argument(help="The prompts, as for `penstock cache warm`.")],
    chat_template: Annotated[str | None, typer.Option(help="As for `penstock serve`.")] = None,
    export: Annotated[
        Path | None, typer.Option(help="Copy what is there of these prompts to a folder, or a file that ends in .tar.")
    ] = None,
    json_: Annotated[bool, typer.Option("--json", help="Print it as JSON.")] = False,
    max_num_seqs: options.MaxNumSeqs = None,
    *,
    computing: options.EngineArguments,
) -> None:
    """Say how much of each prompt a server would find in the folder of --kv-disk, and why no more."""
    from penstock.cli.cache_explain import run_explain

    run_explain(computing.engine(model, max_num_seqs=max_num_seqs), file, chat_template, export, as_json=json_)


@cache.command()
def export(
    folder: Folder,
    target: Annotated[Path, typer.Argument(help="A folder, or a file that ends in .tar and is not there yet.")],
    name: Annotated[
        str | None, typer.Option(help="The part of the folder, as `penstock cache list` names it, if it has several.")
    ] = None,
) -> None:
    """Copy what is kept of a model, for another machine whose server has the same secret."""
    from penstock.cli.cache import folder_of
    from penstock.cli.cache_explain import run_export

    run_export(folder_of(folder), target, name)


@cache.command()
@with_groups
def warm(
    model: Annotated[str, typer.Argument(help="As for `penstock serve`, with the same options.")],
    file: Annotated[Path, typer.Argument(help='A line of JSON for each prompt: {"prompt": "…"} or {"messages": […]}.')],
    chat_template: Annotated[str | None, typer.Option(help="As for `penstock serve`.")] = None,
    max_num_seqs: options.MaxNumSeqs = None,
    *,
    computing: options.EngineArguments,
) -> None:
    """Compute prompts so that a server finds them where --kv-disk or --kv-store keeps them."""
    from penstock.cli.cache import run_warm

    run_warm(computing.engine(model, max_num_seqs=max_num_seqs), file, chat_template)
