"""Runs one script in Valkey or Redis for many who ask at once, on one connection: who come while it is asked are asked
for together."""

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

from redis.exceptions import NoScriptError

# Runs that are sent together. The store does nothing else while it runs one, some ten microseconds.
_AT_ONCE = 100


class _Run(NamedTuple):
    keys: Sequence[str]
    arguments: Sequence[object]
    answer: "asyncio.Future[Any]"


class ScriptLine:
    """Those who wait for a script, in the order in which they came.

    Args:
        client: of redis.asyncio.
    """

    def __init__(self, client: Any, script: str) -> None:
        self._client, self._script = client, script
        self._digest: str | None = None
        self._waiting: deque[_Run] = deque()
        self._work: asyncio.Task[None] | None = None

    def run(self, keys: Sequence[str], arguments: Sequence[object]) -> "asyncio.Future[Any]":
        """What the script returns. Raises RedisError, OSError."""
        loop = asyncio.get_running_loop()
        run = _Run(keys, arguments, loop.create_future())
        self._waiting.append(run)
        if self._work is None or self._work.done():
            self._work = loop.create_task(self._ask())
        return run.answer

    async def _ask(self) -> None:
        while self._waiting:
            runs = [self._waiting.popleft() for _ in range(min(_AT_ONCE, len(self._waiting)))]
            # Somebody who does not wait any more may not know that it was done.
            runs = [run for run in runs if not run.answer.done()]
            try:
                answers = await self._sent(runs)
            except BaseException as error:
                for run in runs:
                    if not run.answer.done():
                        run.answer.set_exception(error)
                if not isinstance(error, Exception):
                    raise
                continue
            for run, answer in zip(runs, answers, strict=True):
                if run.answer.done():
                    continue
                if isinstance(answer, Exception):
                    run.answer.set_exception(answer)
                else:
                    run.answer.set_result(answer)

    async def _sent(self, runs: Sequence[_Run]) -> list[Any]:
        if self._digest is None:
            self._digest = await self._client.script_load(self._script)
        answers = await self._together(runs)
        unknown = [place for place, answer in enumerate(answers) if isinstance(answer, NoScriptError)]
        if unknown:
            # It has begun again since.
            await self._client.script_load(self._script)
            for place, answer in zip(unknown, await self._together([runs[each] for each in unknown]), strict=True):
                answers[place] = answer
        return answers

    async def _together(self, runs: Sequence[_Run]) -> list[Any]:
        async with self._client.pipeline(transaction=False) as pipeline:
            for run in runs:
                pipeline.evalsha(self._digest, len(run.keys), *run.keys, *run.arguments)
            answers: list[Any] = await pipeline.execute(raise_on_error=False)
        return answers
