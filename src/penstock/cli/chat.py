"""`penstock run`: a chat in the terminal."""

import asyncio
import contextlib
import signal
import sys
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.markup import escape

from penstock.core.errors import ConfigurationError, PenstockError, RowFailed
from penstock.core.sampling import SamplingParams
from penstock.llm import AsyncEngine, chat_encoder
from penstock.text.chat_template import ChatEncoder

HELP = "Write a message and press Enter. /clear forgets the conversation, /exit (or Ctrl-D) ends it."


@dataclass(frozen=True)
class _Session:
    engine: AsyncEngine
    encoder: ChatEncoder
    params: SamplingParams
    system: str | None

    def opening(self) -> list[dict[str, str]]:
        return [{"role": "system", "content": self.system}] if self.system else []

    async def answer(self, messages: list[dict[str, str]]) -> str:
        """Stream the answer to standard output and return it; cancelling ends it early and keeps what came."""
        parts: list[str] = []
        ids = self.encoder.encode(messages)
        async with contextlib.aclosing(self.engine.generate(ids, self.params)) as outputs:
            # A cancelled answer is an answer: the user has read enough.
            with contextlib.suppress(asyncio.CancelledError):
                async for output in outputs:
                    for delta in output.deltas:
                        parts.append(delta.text)
                        sys.stdout.write(delta.text)
                        sys.stdout.flush()
                        if delta.error is not None:
                            raise RowFailed(delta.error)
        sys.stdout.write("\n")
        return "".join(parts)


def run_chat(
    options: dict[str, Any],
    prompt: str | None,
    system: str | None,
    max_tokens: int | None,
    temperature: float | None,
    seed: int | None,
) -> int:
    """Answer one prompt, or chat until the input ends; returns the exit status."""
    params = SamplingParams(max_tokens=max_tokens, temperature=1.0 if temperature is None else temperature, seed=seed)
    return asyncio.run(_chat(options, prompt, system, params))


async def _chat(options: dict[str, Any], prompt: str | None, system: str | None, params: SamplingParams) -> int:
    console = Console(stderr=True)
    with console.status(f"loading {escape(options['model'])}"):
        engine = await AsyncEngine.start(**options)
    async with engine:
        if engine.tokenizer is None:
            raise ConfigurationError("This model has no tokenizer.json, so it cannot read text; give --tokenizer DIR.")
        session = _Session(engine, chat_encoder(engine.tokenizer), params, system)
        for note in session.encoder.template.notes:
            console.print(f"[dim]{escape(note)}[/dim]")
        if prompt is not None:
            await session.answer([*session.opening(), {"role": "user", "content": prompt}])
            return 0
        console.print(f"[dim]{HELP}[/dim]")
        await _converse(session, console)
    return 0


async def _converse(session: _Session, console: Console) -> None:
    messages = session.opening()
    while True:
        try:
            line = (await asyncio.to_thread(input, "> ")).strip()
        except EOFError:
            return
        if line == "/exit":
            return
        if line == "/clear":
            messages = session.opening()
        elif line.startswith("/"):
            console.print(f"[dim]{HELP}[/dim]")
        elif line:
            turn = [*messages, {"role": "user", "content": line}]
            try:
                answer = await _interruptible(session, turn)
            except PenstockError as error:
                # What was refused is not kept, so the next message starts from what worked.
                console.print(f"[red]{escape(error.message)}[/red]")
                continue
            messages = [*turn, {"role": "assistant", "content": answer}]


async def _interruptible(session: _Session, turn: list[dict[str, str]]) -> str:
    """The answer to a turn; Ctrl-C ends the answer and not the conversation."""
    task = asyncio.ensure_future(session.answer(turn))
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, task.cancel)
    try:
        return await task
    finally:
        loop.remove_signal_handler(signal.SIGINT)
