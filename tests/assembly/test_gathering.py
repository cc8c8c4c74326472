"""The engine's machine waits for others, and says which did not come or fit."""

import select
import socket
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from penstock import __version__
from penstock.assembly.gathering import Gathered, Waiting, gather, secret_of, weights_of
from penstock.core.config import CacheConfig, EngineConfig, MachinesConfig, ModelConfig, RanksConfig, SchedulerConfig
from penstock.core.errors import ConfigurationError, EngineError
from penstock.core.kv import LayerKV, build_kv_spec
from penstock.engine.messages import unpack_config
from penstock.parallel.machines import (
    Answer,
    Caller,
    Connecting,
    Joining,
    Listener,
    Refused,
    Welcome,
    call,
    read_answer,
)
from support import checkpoints
from support.http_server import free_port
from support.waiting import PATIENCE, until

SPEC = build_kv_spec([LayerKV(1, 8)], "float32")


class _Engine:
    """The first machine of some, which gathers the others on a thread of its own."""

    def __init__(self, path: Path, machines: int = 3, patience: float = 10 * PATIENCE) -> None:
        self.port = free_port()
        found = MachinesConfig(machines, "127.0.0.1", self.port)
        self.ranks = RanksConfig(
            1, 32, (SPEC,) * machines, SPEC, stage_ends=tuple(range(1, machines + 1)), machines=found
        )
        self.model = ModelConfig(str(path), str(path), "float32", "dummy")
        self.config = EngineConfig(self.model, CacheConfig(SPEC, 1), SchedulerConfig(), 1, ranks=self.ranks)
        self._pool = ThreadPoolExecutor(1)
        self.gathered: Future[Gathered] = self._pool.submit(
            gather, self.config, self.ranks, found, lambda: None, patience
        )

    def say(self, asked: Caller) -> socket.socket:
        """Call it; it may not listen yet."""
        ends: list[socket.socket] = []

        def called() -> bool:
            try:
                ends.append(call("127.0.0.1", self.port, b"", __version__, lambda _mine: asked, PATIENCE)[0])
            except ConnectionRefusedError:
                assert not self.gathered.done(), self.gathered.exception()
                return False
            return True

        until(called)
        return ends[0]

    def joining(self, machine: int, weights: bytes | None = None) -> Joining:
        return Joining(machine, 9000 + machine, weights or weights_of(self.model, 1), b"drawn")

    def answer(self, end: socket.socket, machine: int) -> Answer:
        return read_answer(end, self.joining(machine), b"")


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoints.make("llama", tmp_path_factory.mktemp("gathering") / "llama")


def test_all_come_and_are_told_where_the_next_one_listens(path: Path) -> None:
    engine = _Engine(path)
    second = engine.say(engine.joining(2))
    first = engine.say(engine.joining(1))
    one, two = engine.answer(first, 1), engine.answer(second, 2)
    assert isinstance(one, Welcome) and (one.next_host, one.next_port) == ("", engine.port)
    assert isinstance(two, Welcome) and (two.next_host, two.next_port) == ("127.0.0.1", 9001)
    assert unpack_config(one.config) == engine.config
    ends = [
        engine.say(each)
        for each in (
            Connecting(2, "control"),
            Connecting(0, "values"),
            Connecting(7, "control"),
            Connecting(1, "control"),
        )
    ]
    found = engine.gathered.result()
    assert (set(found.controls), set(found.values), set(found.machines)) == ({1, 2}, {0}, {1, 2})
    for end in (first, second, *ends, *found.controls.values(), *found.values.values()):
        end.close()
    found.close()


@pytest.mark.parametrize(
    "machine, weights, message",
    [
        (3, None, "Machine 3 has come, but --machines is 3; take --machine from 1 on."),
        (1, b"others", "Machine 1 has other weights than the first machine; give it the same files."),
    ],
)
def test_one_that_does_not_fit_ends_all_with_a_sentence(
    path: Path, machine: int, weights: bytes | None, message: str
) -> None:
    engine = _Engine(path)
    # The other one may come later, and then finds no engine.
    with engine.say(engine.joining(2)), engine.say(engine.joining(machine, weights)) as unfit:
        assert engine.answer(unfit, machine) == Refused(message)
        with pytest.raises(EngineError) as raised:
            engine.gathered.result()
        assert raised.value.message == message


def test_one_that_has_gone_may_come_again_and_none_comes_twice(path: Path) -> None:
    engine = _Engine(path)
    engine.say(engine.joining(2)).close()
    with engine.say(engine.joining(2)) as one, engine.say(engine.joining(2)) as other:
        # Which of the two was heard first is not known.
        refused = [end for end in (one, other) if select.select([one, other], [], [], PATIENCE)[0] == [end]]
        assert len(refused) == 1
        told = engine.answer(refused[0], 2)
        assert told == Refused("Machine 2 has come twice; give each a --machine of its own.")
        with engine.say(engine.joining(1)) as first:
            again = one if refused[0] is other else other
            assert isinstance(engine.answer(again, 2), Welcome) and isinstance(engine.answer(first, 1), Welcome)
            for rank in (1, 2):
                engine.say(Connecting(rank, "control")).close()
            engine.say(Connecting(0, "values")).close()
            engine.gathered.result().close()


def test_one_that_goes_before_all_are_connected_ends_all(path: Path) -> None:
    engine = _Engine(path)
    with engine.say(engine.joining(1)) as first, engine.say(engine.joining(2)) as second:
        assert isinstance(engine.answer(first, 1), Welcome) and isinstance(engine.answer(second, 2), Welcome)
        second.close()
        with pytest.raises(EngineError, match="Machine 2 has gone before all were connected; its output says why."):
            engine.gathered.result()


def test_those_that_do_not_come_are_named(path: Path) -> None:
    with pytest.raises(EngineError, match="Machine 1, 2 of 3 did not come; start `penstock join` on each machine."):
        _Engine(path, patience=0.0).gathered.result()
    ranks = _Engine(path, 2, patience=0.0).ranks
    listener = Listener("127.0.0.1", 0, b"", __version__)
    with pytest.raises(EngineError, match="Connections of ranks 1 did not come"):
        Waiting(listener, ranks, lambda: None, 0.0).connections(Gathered())
    listener.close()


def test_secrets_are_read(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    assert secret_of(None) == b""
    with pytest.raises(ConfigurationError, match="cannot be read"):
        secret_of(str(file))
    file.write_text("\n")
    with pytest.raises(ConfigurationError, match="is empty"):
        secret_of(str(file))
    file.write_text("a secret\n")
    assert secret_of(str(file)) == b"a secret"


def test_weights_are_compared_by_their_contents(path: Path, tmp_path: Path) -> None:
    def digest(folder: Path, load_format: str = "auto") -> bytes:
        return weights_of(ModelConfig(str(folder), str(folder), "auto", load_format), 1)  # type: ignore[arg-type]

    same = checkpoints.make("llama", tmp_path / "same")
    other = checkpoints.make("llama", tmp_path / "other", seed=1)
    assert digest(path) == digest(same) != digest(other)
    assert digest(path, "dummy") == digest(other, "dummy")
