"""Models that a server has beside its first: `--with 'MODEL --option value'`, in the words of the command itself."""

import shlex
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli import options, serve_options
from penstock.cli.groups import with_groups
from penstock.core.errors import ConfigurationError

if TYPE_CHECKING:
    from penstock.assembly.server_options import ModelToServe

With = Annotated[
    list[str] | None,
    typer.Option(
        "--with",
        metavar="'MODEL [OPTIONS]'",
        help="Serve this model too; may be given several times. Options of the model and its engine stand behind its "
        "name, as in --with 'MODEL --quantization int8 --served-model-name NAME'.",
    ),
]
# What is raised for a command line that is wrong. Typer has a copy of click's class that it gives no name.
_UsageError: type[Any] = typer.BadParameter.__bases__[0]
_parser = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)


@_parser.command(context_settings={"help_option_names": []})
@with_groups
def _companion(
    model: Annotated[str, typer.Argument()],
    served_model_name: Annotated[list[str] | None, typer.Option()] = None,
    max_num_seqs: options.MaxNumSeqs = None,
    enable_prefix_caching: options.PrefixCaching = True,
    *,
    reading: serve_options.ReadingOptions,
    computing: options.EngineArguments,
) -> Any:
    from penstock.assembly.server_options import ModelToServe
    from penstock.configuration.options import EngineOptions

    batch = {"max_num_seqs": max_num_seqs, "enable_prefix_caching": enable_prefix_caching}
    engine = EngineOptions.of(**computing.engine(model, **batch))
    return ModelToServe(engine, reading.model(tuple(served_model_name or ())))


def companions(given: list[str] | None) -> "tuple[ModelToServe, ...]":
    """The models that were asked for. Raises ConfigurationError, in one sentence, for what is none."""
    return tuple(map(_parse, given or ()))


def _parse(text: str) -> "ModelToServe":
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ConfigurationError(f"--with {text!r} cannot be read: {error}.") from None
    if not words or words[0].startswith("-"):
        raise ConfigurationError(f"--with {text!r} has no model before its options.")
    command = typer.main.get_command(_parser)
    try:
        made: ModelToServe = command.main(words, prog_name="--with", standalone_mode=False)
    except _UsageError as error:
        cause = error.format_message().rstrip(".")
        if cause.startswith("No such option"):
            cause += (
                "; behind a model stand options of its engine, --served-model-name, --chat-template and the parsers, "
                "and all others are the server's"
            )
        raise ConfigurationError(f"--with {text!r}: {cause}.") from None
    return made
