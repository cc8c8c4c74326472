"""`penstock run`: a chat in the terminal."""

import asyncio
import contextlib
import sys
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.markup import escape

from penstock.assembly.inputs import protecting
from penstock.core.errors import ConfigurationError, PenstockError
from penstock.core.sampling import SamplingDefaults, SamplingParams
from penstock.core.sourced import NO_CONVERSATIONS
from penstock.llm import AsyncEngine, chat_encoder
from penstock.loading.checkpoint import open_checkpoint
from penstock.loading.hub import resolve_model
from penstock.text.chat_template import ChatEncoder

HELP = "Write a message and press Enter. /clear forgets the conversation, /exit (or Ctrl-D) ends it."
INTERRUPTED = 130


@dataclass(frozen=True)
class _Session:
    engine: AsyncEngine
    encoder: ChatEncoder
    params: SamplingParams
    system: str | None

    def opening(self) -> list[dict[str, str]]:
        return [{"role": "system", "content": self.system}] if self.system else []

    async def answer(self, messages: list[dict[str, str]], parts: list[str]) -> None:
        """Stream the answer to standard output, and into `parts` as it comes, so that what came survives Ctrl-C."""
        ids = self.encoder.encode(messages)
        policy = protecting(self.engine.kv_policy, self.encoder, ids, messages)
        try:
            async with contextlib.aclosing(self.engine.generate(ids, self.params, kv_policy=policy)) as outputs:
                async for output in outputs:
                    for delta in output.deltas:
                        parts.append(delta.text)
                        sys.stdout.write(delta.text)
                        sys.stdout.flush()
                        delta.check()
        finally:
            sys.stdout.write("\n")
            sys.stdout.flush()


def run_chat(
    options: dict[str, Any],
    prompt: str | None,
    system: str | None,
    given: dict[str, Any],
    chat_template: str | None = None,
) -> int:
    """Answer one prompt, or chat until the input ends; returns the exit status.

    `chat_template` is a file, None where the model's own is used. `given` are sampling parameters of the command line,
    None where they are left to the model's recommendation.
    """
    path = resolve_model(options["model"])
    recommended = open_checkpoint(path, weights=False).generation_config
    params = SamplingDefaults.from_generation_config(recommended).params(**given)
    console = Console(stderr=True)
    # Between answers nothing needs the event loop. So the prompt blocks it, where Ctrl-C is an ordinary
    # KeyboardInterrupt; while the runner runs something, Ctrl-C cancels that and nothing else.
    with asyncio.Runner() as runner:
        with console.status(f"loading {escape(options['model'])}"):
            engine = runner.run(AsyncEngine.start(**{**options, "model": str(path)}))
        try:
            if engine.has_sources:
                raise ConfigurationError(f"{options['model']} cannot chat: {NO_CONVERSATIONS}")
            if engine.tokenizer is None:
                raise ConfigurationError(
                    "This model has no tokenizer.json, so it cannot read text; give --tokenizer DIR."
                )
            session = _Session(engine, chat_encoder(engine.tokenizer, chat_template), params, system)
            for note in session.encoder.template.notes:
                console.print(f"[dim]{escape(note)}[/dim]")
            if prompt is not None:
                runner.run(session.answer([*session.opening(), {"role": "user", "content": prompt}], []))
                return 0
            console.print(f"[dim]{HELP}[/dim]")
            return _converse(session, runner, console)
        except KeyboardInterrupt:
            return INTERRUPTED
        finally:
            runner.run(engine.close())


def _converse(session: _Session, runner: asyncio.Runner, console: Console) -> int:
    messages = session.opening()
    while True:
        try:
            line = input("> ").strip()
        except EOFError:
            return 0
        if line == "/exit":
            return 0
        if line == "/clear":
            messages = session.opening()
        elif line.startswith("/"):
            console.print(f"[dim]{HELP}[/dim]")
        elif line:
            turn = [*messages, {"role": "user", "content": line}]
            parts: list[str] = []
            try:
                runner.run(session.answer(turn, parts))
            except KeyboardInterrupt:
                # The user has read enough: what came is the answer.
                console.print("[dim]interrupted[/dim]")
            except PenstockError as error:
                # What was refused is not kept, so the next message starts from what worked.
                console.print(f"[red]{escape(error.message)}[/red]")
                continue
            messages = [*turn, {"role": "assistant", "content": "".join(parts)}]
