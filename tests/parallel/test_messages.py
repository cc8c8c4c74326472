"""What ranks are told arrives as it was."""

import socket
from dataclasses import fields

import numpy as np
import pytest
import torch

from penstock.core.errors import EngineError
from penstock.kernels.batch import StepBatch, Weighing
from penstock.parallel.leader import LeadingModel, LeadingStorage, Telling
from penstock.parallel.messages import (
    Clear,
    Compute,
    Copy,
    Failed,
    Inbox,
    Loaded,
    Met,
    ToRank,
    batch_of,
    compute,
    frame,
)
from penstock.parallel.passing import Before, Behind
from penstock.stepping.storage import Pairs, Took


def _batch(**more: object) -> StepBatch:
    return StepBatch(
        token_ids=torch.tensor([3, 1, 4, 1]),
        positions=torch.tensor([7, 0, 1, 2]),
        query_lengths=[1, 3],
        context_lengths=[8, 3],
        num_decodes=1,
        logit_rows=torch.tensor([0, 3]),
        # Some columns of a wider table, as tables of rows are.
        block_tables=(torch.arange(8, dtype=torch.int32).view(2, 4)[:, 1:3], torch.zeros((2, 1), dtype=torch.int32)),
        block_size=16,
        **more,  # type: ignore[arg-type]
    )


def _same(found: object, expected: object) -> bool:
    if isinstance(expected, torch.Tensor):
        return isinstance(found, torch.Tensor) and found.dtype is expected.dtype and torch.equal(found, expected)
    if isinstance(expected, np.ndarray):
        return isinstance(found, np.ndarray) and found.dtype == expected.dtype and bool((found == expected).all())
    if isinstance(expected, tuple):
        return isinstance(found, tuple) and all(map(_same, found, expected)) and len(found) == len(expected)
    return found == expected


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"shared": torch.tensor([1, 0])},
        {"dropped": (np.array([0, 16]), np.array([32, 0]))},
        {"types": torch.tensor([0, 0, 1, 1]), "seen": torch.tensor([1, 2])},
        {"sources": [5, 6]},
    ],
)
def test_batches(more: dict[str, object]) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(frame(compute("logits", 7, _batch(**more))))
        told = Inbox(theirs).to_rank()
    assert isinstance(told, Compute) and (told.program, told.number) == ("logits", 7)
    found, expected = batch_of(told), _batch(**more)
    for field in fields(StepBatch):
        assert _same(getattr(found, field.name), getattr(expected, field.name)), field.name


def test_tokens_that_the_first_device_knows_are_told_to_be_there() -> None:
    """Others have none of them: an id below 0 says where each is to be put."""
    told = _batch(carried=torch.zeros(3, dtype=torch.float64))
    there = batch_of(compute("logits", 1, told)).carried
    assert there is not None and len(there) == 0 and there.dtype is torch.float64
    assert batch_of(compute("logits", 1, _batch())).carried is None


def test_what_ranks_cannot_be_told_is_no_message() -> None:
    with pytest.raises(ValueError, match="Ranks weigh no attention"):
        compute("logits", 7, _batch(weighing=Weighing([1, 0], ())))


def test_what_is_no_step_goes_with_the_next_one() -> None:
    sent: list[bytes] = []
    parted: list[bool] = []
    tell = Telling(sent.append, frame, lambda: parted.append(True))
    messages: list[ToRank] = [Clear([4, 5]), Copy([(4, 6)]), compute("states", 1, _batch()), Clear([7])]
    for message in messages:
        tell(message)
    assert sent == [b"".join(map(frame, messages[:3]))]
    tell(messages[2])
    assert sent[1:] == [frame(messages[3]) + frame(messages[2])]
    assert not parted


class _Broken:
    """A model whose step does not come to its end."""

    def run(self, batch: StepBatch) -> torch.Tensor:
        raise KeyboardInterrupt

    def results(self, batch: StepBatch, *given: torch.Tensor) -> tuple[torch.Tensor, ...]:
        raise KeyboardInterrupt

    def use_idle_time(self) -> bool:
        return False


class _Pool:
    """Blocks that tell what is done to them."""

    def __init__(self, done: list[object]) -> None:
        self._done = done

    def clear_blocks(self, blocks: list[int]) -> None:
        self._done.append(("clear", blocks))

    def copy_blocks(self, pairs: Pairs) -> None:
        self._done.append(("copy", list(pairs)))

    def swap_out(self, pairs: Pairs) -> None:
        raise NotImplementedError

    def swap_in(self, pairs: Pairs) -> Took:
        raise NotImplementedError

    def use_idle_time(self) -> None:
        raise NotImplementedError


class _Last:
    """The last stage, which tells what it is given."""

    def __init__(self, done: list[object]) -> None:
        self._done = done

    def run(self, batch: StepBatch) -> torch.Tensor:
        return self.results(batch)[0]

    def results(self, batch: StepBatch, *given: torch.Tensor) -> tuple[torch.Tensor, ...]:
        self._done.append(("compute", [float(value) for value in given]))
        return given

    def use_idle_time(self) -> bool:
        return False


def test_blocks_change_here_in_the_order_of_the_steps_that_are_finished() -> None:
    """Others are told at once, since they compute steps as they are begun."""
    sent: list[bytes] = []
    done: list[object] = []
    ours, theirs = socket.socketpair()
    with ours:
        tell = Telling(sent.append, frame, lambda: None)
        storage = LeadingStorage(_Pool(done), tell)
        model = LeadingModel(_Last(done), "logits", storage, tell, before=Before(theirs))
        storage.clear_blocks([1])
        first = model.begin(_batch())
        storage.copy_blocks([(1, 2)])
        second = model.begin(_batch())
        assert len(sent) == 2 and not done
        before = Behind(ours)
        for number in (1, 2):
            before.give(number, [torch.tensor([[float(number)]])])
        first()
        second()
    assert done == [("clear", [1]), ("compute", [1.0]), ("copy", [(1, 2)]), ("compute", [2.0])]


def test_a_step_that_is_broken_off_is_the_last() -> None:
    """Others are in the middle of it, and would meet the next one there."""
    sent: list[bytes] = []
    parted: list[bool] = []
    tell = Telling(sent.append, frame, lambda: parted.append(True))
    model = LeadingModel(_Broken(), "logits", LeadingStorage(_Pool([]), tell), tell)
    with pytest.raises(KeyboardInterrupt):
        model.results(_batch())
    assert len(sent) == 1 and parted == [True]
    with pytest.raises(EngineError, match="broken off"):
        model.results(_batch())
    assert len(sent) == 1


def test_ends_and_answers() -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        with ours:
            ours.sendall(frame(Loaded()) + frame(Met(15)) + frame(Failed("model_file", "It is gone.")) + b"\x05")
        inbox = Inbox(theirs)
        assert [inbox.from_rank() for _ in range(3)] == [Loaded(), Met(15), Failed("model_file", "It is gone.")]
        with pytest.raises(EOFError):
            inbox.from_rank()


def test_a_length_that_cannot_be() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(b"\xff\xff\xff\xff")
        with pytest.raises(ValueError, match="at most"):
            Inbox(theirs).to_rank()
