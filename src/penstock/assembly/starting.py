"""Starts an engine in a process of its own: for a server, and for a program that asks it itself."""

import asyncio
import sys
from collections.abc import Callable
from typing import Self

from penstock.assembly.prepare import Prepared, engine_command, prepare
from penstock.configuration.options import EngineOptions
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
    async def begin(
        cls,
        options: EngineOptions,
        progress: Callable[[int, int], None] = lambda _done, _total: None,
        patience: Patience | None = None,
    ) -> Self:
        """Start the process, and find out meanwhile what it is to load. Raises StartupError.

        `progress` gets bytes of weights done and in all; `patience` says how long what is waited for.
        """
        command = engine_command(sys.executable)
        engine = await Engine.start(lambda: EngineProcess.start(command, progress), patience)
        try:
            return cls(engine, await asyncio.to_thread(prepare, options, api_beside=True))
        except BaseException:
            await engine.close()
            raise

    async def load(self) -> Tokenizer | None:
        """Have the process load the model, and load the tokenizer here meanwhile. Raises StartupError."""
        self.engine.configure(self.prepared.config)
        return await asyncio.to_thread(self.prepared.load_tokenizer)

    async def ready(self, tokenizer: Tokenizer | None, names: tuple[str, ...] = ()) -> Ready:
        """Wait until it serves, under `names` where there are some. Raises StartupError."""
        table = None if tokenizer is None else tokenizer.table
        return await self.engine.ready(self.prepared.model_info(tokenizer, names), table)
