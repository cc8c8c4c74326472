"""`penstock serve`: tells a person how a server starts, and runs it."""

import gc
import sys
from typing import Self

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from penstock.access.exposure import Access
from penstock.assembly.replica import Started
from penstock.assembly.served_model import StartedModel
from penstock.assembly.server_options import ServeOptions
from penstock.assembly.serving import explain_server, serve_model
from penstock.cli.addresses import address_markup
from penstock.configuration.options import EngineOptions
from penstock.engine.messages import StageTime
from penstock.server.serve import run_loop

# When the API process looks for garbage in cycles, as `gc.set_threshold` takes it: after this many new objects, and
# through older ones once in this many times. It holds up every request for about a millisecond a thousand objects, and
# finds little: what a request leaves behind is in no cycle (tests/server/test_garbage.py).
GARBAGE = (5_000, 10, 10)

console = Console(stderr=True, highlight=False)


def run_serve(options: EngineOptions, serving: ServeOptions, access: Access) -> None:
    """Serve until a signal ends it. Raises StartupError, EngineError."""
    run_loop(serve_model(options, serving, access, watcher=_ShownStart()))


def explain_serve(options: EngineOptions, serving: ServeOptions, access: Access) -> None:
    """Print every setting, and why it has its value. Raises StartupError."""
    table = Table("setting", "value", "why", box=None, pad_edge=False, header_style="bold")
    for reason in explain_server(options, serving, access):
        table.add_row(escape(reason.setting), escape(reason.value), escape(reason.why))
    # Where the output is no terminal, nothing is cut to the width of a screen.
    Console(width=None if sys.stdout.isatty() else 1000).print(table)


class _ShownStart:
    """Shows a start on the console, with a bar in a terminal while weights load."""

    def __init__(self) -> None:
        self._bar = Progress(
            TextColumn("loading weights"), BarColumn(), DownloadColumn(), TimeElapsedColumn(), console=console
        )
        self._task: TaskID | None = None

    def progress(self, done: int, total: int) -> None:
        """Take in how many bytes of weights are in place."""
        if self._task is None:
            self._task = self._bar.add_task("weights", total=total)
        self._bar.update(self._task, completed=done)

    def loading(self) -> Self:
        """Around the time in which the model loads."""
        return self

    def __enter__(self) -> None:
        if console.is_terminal:
            self._bar.start()

    def __exit__(self, *unused: object) -> None:
        if console.is_terminal:
            self._bar.stop()

    def serves(self, started: Started) -> None:
        """Say what the server is like, and where."""
        # What is there now stays; to look through it for garbage held up every stream for 50 to 80 ms.
        gc.freeze()
        gc.set_threshold(*GARBAGE)
        for model in started.models:
            _print_budget(model, started.seconds, named=len(started.models) > 1)
            for note in model.notes:
                console.print(f"[dim]{escape(note)}[/dim]", soft_wrap=True)
            for reason in model.told:
                console.print(escape(str(reason)), soft_wrap=True)
        console.print("--explain-config shows every setting with its reason.")
        for remark in started.remarks:
            console.print(escape(remark), soft_wrap=True)
        address = address_markup(*started.address, started.encrypted)
        served = ", ".join(f"[bold]{escape(model.name)}[/bold]" for model in started.models)
        console.print(f"Serving {served} on {address}, with a page at /")


def _print_budget(model: StartedModel, seconds: float, *, named: bool) -> None:
    stages = [*model.ready.stages, StageTime("load tokenizer (beside it)", model.tokenizer_seconds)]
    width = max(len(stage.stage) for stage in stages)
    console.print(f"Start-up budget of {escape(model.name)}:" if named else "Start-up budget:")
    for stage in stages:
        console.print(f"  {stage.stage:<{width}}  {stage.seconds:6.2f} s")
    console.print(f"  {'ready after':<{width}}  {seconds:6.2f} s")
