"""Starts an engine in a process of its own: for a server, and for a program that asks it itself."""

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from typing import Self

from penstock.assembly.prepare import Prepared, engine_command, prepare
from penstock.assembly.together import prepare_together
from penstock.configuration.options import EngineOptions
from penstock.core.config import Reason
from penstock.engine.beside import SharedMemory
from penstock.engine.client import Engine
from penstock.engine.messages import Ready
from penstock.engine.process import EngineProcess
from penstock.engine.watch import Patience
from penstock.text.tokenizer import Tokenizer


class EngineStart:
    """An engine's process from its beginning until it serves.

    Attributes:
        engine: its client; the caller closes it.
        prepared: what is loaded, and how.
    """

    def __init__(self, engine: Engine, prepared: Prepared) -> None:
        self.engine = engine
        self.prepared = prepared

    @classmethod
    async def begin(cls, options: EngineOptions) -> Self:
        """Start the process, and find out meanwhile what it is to load. Raises StartupError."""
        async with _processes(1) as (engine,):
            return cls(engine, await asyncio.to_thread(prepare, options, api_beside=True))

    @classmethod
    async def begin_together(
        cls,
        options: Sequence[EngineOptions],
        names: Sequence[tuple[str, ...]],
        progress: Callable[[int, int], None],
        patience: Patience,
        memory: int | None = None,
    ) -> tuple[list[Self], tuple[Reason, ...]]:
        """The same for all models of a server, and how they share the machine. Raises StartupError.

        `names` are by model those under which it is to be served; `progress` gets bytes of weights done and in all;
        `patience` says how long what is waited for; `memory` are the bytes that they may use, all where None.
        """
        async with _processes(len(options), progress, patience) as engines:
            together = await asyncio.to_thread(prepare_together, options, names, memory=memory)
            return [cls(*each) for each in zip(engines, together.models, strict=True)], together.shared

    async def load(self) -> Tokenizer | None:
        """Have the process load the model, and load the tokenizer here meanwhile. Raises StartupError."""
        self.engine.configure(self.prepared.config)
        return await asyncio.to_thread(self.prepared.load_tokenizer)

    async def ready(self, tokenizer: Tokenizer | None, names: tuple[str, ...] = ()) -> Ready:
        """Wait until it serves, under `names` where there are some. Raises StartupError."""
        table = None if tokenizer is None else tokenizer.table
        return await self.engine.ready(self.prepared.model_info(tokenizer, names), table)


@contextlib.asynccontextmanager
async def _processes(
    count: int, progress: Callable[[int, int], None] = lambda _done, _total: None, patience: Patience | None = None
) -> AsyncIterator[list[Engine]]:
    """Processes that begin with their imports; where the block fails, they end."""
    command, parts = engine_command(sys.executable), [(0, 0)] * count
    memory = SharedMemory() if count > 1 else None
    engines: list[Engine] = []

    def launch(number: int) -> Awaitable[EngineProcess]:
        def report(done: int, total: int) -> None:
            parts[number] = done, total
            progress(sum(part[0] for part in parts), sum(part[1] for part in parts))

        return EngineProcess.start(command, report, None if memory is None else (memory, number))

    try:
        for number in range(count):
            engines.append(await Engine.start(partial(launch, number), patience))
        yield engines
    except BaseException:
        await asyncio.gather(*(engine.close() for engine in engines))
        raise
