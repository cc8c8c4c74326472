"""Blocks of the processor's memory for a shelf: none is of two slots, and none goes while a plan may touch it."""

import random

import pytest

from penstock.cache.shelf_places import HostPlaces
from penstock.cache.shelf_room import Name

FIRST, BLOCKS = 5, 24


def slot(luck: random.Random) -> Name:
    group = luck.randrange(2)
    return group, bytes([luck.randrange(3)]) * 16 + bytes([luck.randrange(12)]) * 16


@pytest.mark.parametrize("seed", range(50))
def test_random_use(seed: int) -> None:
    luck, places = random.Random(seed), HostPlaces(FIRST, BLOCKS)
    there: dict[Name, tuple[int, ...]] = {}
    written: dict[Name, tuple[int, ...]] = {}
    read: list[Name] = []
    for _ in range(300):
        name = slot(luck)
        match luck.choice(["take", "take", "written", "read", "read", "over", "forget"]):
            case "take" if name not in there and name not in written:
                width = 1 + 2 * name[0]
                place, gone = places.take(name, width, luck.choice([0.5, 1.0, 4.0]))
                assert not set(gone) & {*read, *written}
                there = {each: blocks for each, blocks in there.items() if each not in gone}
                if place is None:
                    busy = {*read, *written}
                    held = sum(1 + 2 * each[0] for each in {*busy, *there})
                    assert name in read or BLOCKS - held < width
                else:
                    assert place.store == "host" and len(place.blocks) == width and place.key == name[1]
                    assert all(FIRST <= block < FIRST + BLOCKS for block in place.blocks)
                    written[name] = place.blocks
            case "written" if written:
                name = luck.choice(list(written))
                blocks, done = written.pop(name), luck.random() < 0.8
                places.written(name, done=done)
                if done:
                    there[name] = blocks
            case "read" if name in there:
                assert places.begin_reading(name).blocks == there[name]
                read.append(name)
            case "over" if read:
                name = read.pop(luck.randrange(len(read)))
                places.end_reading(name)
                if luck.random() < 0.2:
                    # It could not be read: the shelf has it no more.
                    places.forget(name)
                    there.pop(name, None)
        held = [*there.values(), *written.values()]
        assert len({block for blocks in held for block in blocks}) == sum(map(len, held))
        assert places.num_used >= sum(map(len, held))
        places.check()
    for name in read:
        places.end_reading(name)
    for name in written:
        places.written(name, done=False)
    for name in there:
        places.forget(name)
    places.check()
