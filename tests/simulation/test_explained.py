"""Causes of slowness, planted one at a time where work takes time by its amount: the verdict names the right one."""

import asyncio
from typing import Any

import pytest

from support.timed_world import TimedWorld, Use
from support.world_engine import NoWait


def ids(count: int, seed: int) -> list[int]:
    """A prompt that no other seed gives."""
    return [(seed * 1000 + place) % 3989 + 5 for place in range(count)]


def cause(use: Use, share_waiting: float = 0.0, **options: Any) -> None:
    world = TimedWorld(use, **options)
    world.cpu_wait = NoWait(share_waiting)
    world.run()


async def check(world: TimedWorld, expected: str, request_id: str) -> None:
    codes = await world.causes(request_id)
    assert codes[0] == expected, codes


def test_a_long_queue() -> None:
    async def use(world: TimedWorld) -> None:
        others = await world.beside(*(world.ask(prompt=ids(8, seed), max_tokens=20) for seed in range(6)))
        await check(world, "queue_rows", await world.ask(prompt=ids(8, 10), max_tokens=1))
        await asyncio.gather(*others)

    cause(use, max_num_seqs=2)


def test_an_evicted_prefix() -> None:
    async def use(world: TimedWorld) -> None:
        await world.ask(prompt=ids(80, 3), max_tokens=1)
        await world.ask(prompt=ids(80, 4), max_tokens=1)
        await check(world, "evicted_prefix", await world.ask(prompt=ids(80, 3), max_tokens=1))

    cause(use, num_blocks=24)


def test_a_preemption() -> None:
    async def use(world: TimedWorld) -> None:
        (older,) = await world.beside(world.ask(prompt=ids(30, 5), max_tokens=60))
        await check(world, "preemption", await world.ask(prompt=ids(30, 6), max_tokens=20))
        await older

    cause(use, num_blocks=24)


def test_a_cold_prefix() -> None:
    async def use(world: TimedWorld) -> None:
        await check(world, "cold_prefix", await world.ask(prompt=ids(80, 10), max_tokens=1))

    cause(use)


def test_a_long_context() -> None:
    async def use(world: TimedWorld) -> None:
        await world.ask(prompt=ids(80, 11), max_tokens=1)
        await check(world, "long_context", await world.ask(prompt=ids(80, 11), max_tokens=12))

    cause(use)


def test_a_big_neighbour() -> None:
    async def use(world: TimedWorld) -> None:
        # They come at the same time, so that both are there when the first step begins.
        neighbour = asyncio.ensure_future(world.ask(prompt=ids(90, 13), max_tokens=1))
        await check(world, "neighbour_prefill", await world.ask(prompt=ids(4, 14), max_tokens=2))
        await neighbour

    cause(use, budget=16)


def test_many_tokens_are_nothing_unusual() -> None:
    async def use(world: TimedWorld) -> None:
        await check(world, "decode", await world.ask(prompt=ids(4, 15), max_tokens=12))

    cause(use)


def test_the_tokenisation_of_a_huge_prompt() -> None:
    async def use(world: TimedWorld) -> None:
        world.character_seconds = 0.1
        await check(world, "tokenisation", await world.ask(prompt="rain and snow and rain", max_tokens=1))

    cause(use)


def test_the_compilation_of_a_grammar() -> None:
    async def use(world: TimedWorld) -> None:
        fields = {"prompt": "rain", "max_tokens": 1, "guided_regex": "[a-z]+"}
        await check(world, "grammar_compile", await world.ask(**fields))

    cause(use)


def test_a_slow_reader() -> None:
    async def use(world: TimedWorld) -> None:
        request_id = await world.ask(prompt=ids(4, 20), max_tokens=40, stream=True, pause=30.0, room=0)
        await check(world, "slow_reader", request_id)

    cause(use)


def test_contention_for_processors() -> None:
    async def use(world: TimedWorld) -> None:
        await check(world, "cpu_contention", await world.ask(prompt=ids(8, 21), max_tokens=30))

    cause(use, share_waiting=0.8)


@pytest.mark.parametrize("tokens", [20, 60])
def test_an_engine_that_fails(tokens: int) -> None:
    async def use(world: TimedWorld) -> None:
        (asked,) = await world.beside(world.ask(prompt=ids(8, 22), max_tokens=tokens))
        while world.workers[-1].core is None or world.workers[-1].core.snapshot().step < tokens // 2:
            await asyncio.sleep(0.001)
        world.workers[-1].die(70)
        await check(world, "engine_restart", await asked)

    cause(use)
