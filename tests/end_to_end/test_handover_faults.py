"""Blocks that are lost, spoiled, late, or whose replicas end: tokens and log probabilities are those of one engine."""

import contextlib
import itertools
import random
import signal
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from penstock import LLM, SamplingParams
from penstock.cache import shelves
from penstock.core.errors import ConfigurationError
from penstock.core.handover import LEASE_SECONDS, Transport
from penstock.kernels.cpu.native import OBSTACLE
from penstock.runtime import health, partner_tcp
from penstock.runtime.offer_cells import Cells
from penstock.runtime.partner import Partner
from penstock.runtime.partner_near import NearPartner
from penstock.runtime.partner_tcp import TcpPartner
from penstock.runtime.partner_transfer import TransferPartner
from penstock.runtime.partner_wire import Reach
from penstock.runtime.transfers import Transfers
from support.engine_alone import Engine
from support.faulty_partner import POINTS, WHATS, Fault, faulty_way
from support.transports import ENGINES, over_tcp
from support.waiting import until

pytestmark = pytest.mark.skipif(OBSTACLE is not None, reason=str(OBSTACLE))

# Each point with each fault, once in `make test`.
FAULTS = [*itertools.product(POINTS, WHATS)]
FEW, MANY = len(FAULTS) + 4, 1000
# And with each transfer engine, some of them.
FEW_BY_ENGINE = 8
BLOCKS = 6
PROMPT, OUTPUT = 16 * BLOCKS + 5, 6


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("engines")
    (folder / "secret").write_text("0123456789abcdef" * 4)
    return folder


@pytest.fixture(scope="module")
def engines(folder: Path) -> dict[str, Engine]:
    names = {"alone": "both", "prefill": "prefill", "decode": "decode", "another": "decode"}
    return {name: Engine(folder, role) for name, role in names.items()}


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What fails is asked again at once, and what does not come is soon late; to read always pays."""
    monkeypatch.setattr(health, "_REST_SECONDS", 0.0)
    monkeypatch.setattr(health, "_LONGEST_REST", 0.0)
    monkeypatch.setattr(partner_tcp, "_ANSWER_SECONDS", 0.05)
    monkeypatch.setattr(shelves, "_LEAST_PATIENCE", 0.02)
    monkeypatch.setattr(shelves, "_MOST_SHARE", 1e9)


def _handed(
    engines: dict[str, Engine],
    kinds: Sequence[Callable[[str], Partner]],
    luck: random.Random,
    fault: Fault | None,
    dies: bool,
    told: Counter[str],
) -> None:
    """One prompt, with a fault on the way of its blocks; `dies`: who decodes ends in the midst, and another goes on.

    `kinds` of partners are what blocks may come by.
    """
    kind = luck.choice(kinds)
    prompt = [luck.randrange(300, 4096) for _ in range(PROMPT)]
    params: Any = SamplingParams(
        max_tokens=OUTPUT, temperature=0.8, seed=luck.randrange(1000), logprobs=2, ignore_eos=True
    )
    alone, prefill = engines["alone"], engines["prefill"]
    right = alone.until(alone.submit(prompt, params), OUTPUT)
    request = prefill.submit(prompt, params, keep_whole=LEASE_SECONDS)
    first, _ = prefill.until(request, 1)
    prefill.leave(request)
    with faulty_way(prefill.built.offers_at.split(" ")[0], fault, luck) as way:
        names = ["decode", "another"] if dies else ["decode"]
        for name in names:
            decode = engines[name]
            peers = decode.core._pulling._partners._peers  # type: ignore[union-attr]
            while peers._partners:
                peers._partners.popitem()[1].partner.close()
            peers._connect = lambda _address: kind(way.address)
            request = decode.submit(prompt, params, output=tuple(first), offered_at=prefill.built.offers_at)
            wanted = 2 if name != names[-1] else OUTPUT
            found = decode.until(request, wanted)
            assert found == tuple(each[:wanted] for each in right) or len(found[0]) > wanted
            first = [*found[0][:wanted]]
            if wanted < OUTPUT:
                decode.core.abort(request)
        assert found == right, (fault, dies)
    for name in names:
        core = engines[name].core
        # What was late comes, or does not, and belongs to no request.
        while core.has_work:
            core.step()
        assert core.check() is None
        until(lambda core=core: not core._pulling._found)
    told["met"] += way.met
    told["clean"] += fault is None


def test_tokens_are_right_whatever_happens_on_the_way(
    engines: dict[str, Engine], request: pytest.FixtureRequest
) -> None:
    luck, told = random.Random(11), Counter[str]()
    # Over the connection alone, or by memory in common.
    kinds: tuple[Callable[[str], Partner], ...] = (TcpPartner, NearPartner)
    for number in range(MANY if request.config.getoption("slow") else FEW):
        _handed(engines, kinds, luck, _fault(number, luck), luck.random() < 0.25, told)
    load = engines["decode"].core.snapshot().shelf("peer")
    assert told["met"] > len(FAULTS) / 2 and told["clean"] >= 2
    assert load.read > BLOCKS and load.lost > 0
    # Books of what is offered are empty again, and so is what is known of requests.
    for name in ("decode", "another"):
        peers = engines[name].core._pulling._partners._peers  # type: ignore[union-attr]
        assert not peers._places


def _fault(number: int, luck: random.Random) -> Fault | None:
    """Each in its turn, and none."""
    if not number % (len(FAULTS) + 1):
        return None
    point, what = FAULTS[number % (len(FAULTS) + 1) - 1]
    return Fault(point, what, luck.randrange(BLOCKS) if point in ("pull", "pulled") else 0)


@pytest.mark.parametrize("transport", ENGINES)
def test_tokens_are_right_whatever_happens_to_a_transfer_engine(
    transport: Transport, engines: dict[str, Engine], folder: Path, request: pytest.FixtureRequest
) -> None:
    """Faults on the connection, and engines that are killed or stopped, on either side."""
    luck, told = random.Random(12), Counter[str]()
    with over_tcp(transport):
        offering = Engine(folder, "prefill", kv_transport=transport)
        reading = Counting(transport, Cells(1 << 20, 4 << 20), serves=False)
        kinds = (partial(TransferPartner, transfers=reading),)
        for number in range(MANY if request.config.getoption("slow") else FEW_BY_ENGINE):
            victims = [each for each in psutil.Process().children() if _is_engine(each)]
            if victims and number % 3 == 2:
                victim = luck.choice(victims)
                victim.send_signal(luck.choice([signal.SIGKILL, signal.SIGSTOP]))
            fault = _fault(luck.randrange(len(FAULTS)), luck) if number % 3 == 1 else None
            _handed({**engines, "prefill": offering}, kinds, luck, fault, luck.random() < 0.25, told)
            for each in victims:
                with contextlib.suppress(psutil.NoSuchProcess):
                    each.send_signal(signal.SIGCONT)
        assert told["met"] and told["clean"] and reading.worked > BLOCKS
        reading.close()


class Counting(Transfers):
    """One that counts what was read by the engine."""

    worked = 0

    def read(self, reach: Reach, start: int, size: int) -> bytes:
        found = super().read(reach, start, size)
        self.worked += 1
        return found


def _is_engine(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return "penstock.runtime.transfer_process" in process.cmdline()
    return False


def test_a_role_is_of_servers() -> None:
    with pytest.raises(ConfigurationError, match="behind a gateway, which hands prompts over; leave it out"):
        LLM("haiku", role="decode")
