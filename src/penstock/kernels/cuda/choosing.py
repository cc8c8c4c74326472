"""Asks the kernel that chooses tokens."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from penstock.core.choosing import Asked, Found
from penstock.kernels.cuda.place import Place, padded
from penstock.kernels.cuda.sampling import choose_kernel
from penstock.kernels.cuda.step import Staging

# Columns that a program reads at a time.
_BLOCK = 4096


class Choosing:
    """Tokens that are chosen meanwhile, and come here by a copy that is waited for only when they are read."""

    def __init__(self, found: Tensor, count: int) -> None:
        """`found`: float64 [3, count or more], whose rows are tokens, peaks and log probabilities."""
        self.tokens = found[0, :count]
        self._count = count
        self._here, self._copied = found, None
        if found.device.type == "cuda":
            self._here = torch.empty(found.shape, dtype=found.dtype, pin_memory=True)
            self._here.copy_(found, non_blocking=True)
            self._copied = torch.cuda.Event()
            self._copied.record()

    def read(self) -> list[Found]:
        """Wait until they are here, and all that was launched before is over."""
        if self._copied is not None:
            self._copied.synchronize()
        return [(int(token), peak, logprob) for token, peak, logprob in self._here.T[: self._count].tolist()]


def chooser(place: Place) -> Callable[[Tensor, Sequence[Asked]], Choosing]:
    """Chooses a token for each that is asked for, of float32 logits [rows, vocabulary] in the memory of `place`.

    Two copies cross the bus, whatever the vocabulary's width is: what is asked, and what was found. The processor waits
    for them only when what was found is read.
    """
    staging = Staging(place.device)

    def choose(logits: Tensor, asked: Sequence[Asked]) -> Choosing:
        with place.current():
            found = launch_choice(logits, questions(staging, asked))
            return Choosing(found, len(asked))

    return choose


def questions(staging: Staging, asked: Sequence[Asked]) -> list[Tensor]:
    """What is asked for, on the device: int32 rows and top_ks, numbers and words by their bits."""
    numbers = [(temperature, top_p, log_min_p) for _, temperature, _, top_p, log_min_p, _ in asked]
    return staging.send(
        [
            np.array([row for row, *_ in asked], np.int32),
            np.array([top_k for _, _, top_k, *_ in asked], np.int32),
            np.array(numbers, np.float64).view(np.int32),
            np.array([key for *_, key in asked], np.int64).view(np.int32),
        ]
    )


def launch_choice(logits: Tensor, questions: Sequence[Tensor]) -> Tensor:
    """float64 [3, questions or one more]: token, peak and log probability for each of `questions`, on the device."""
    rows, top_ks, numbers, words = questions
    count = len(rows)
    # Each row begins at a multiple of 16 bytes, which the compiler makes use of: one kernel is for all counts.
    found = torch.empty((3, count + count % 2), dtype=torch.float64, device=logits.device)
    if count:
        choose_kernel[(count,)](
            logits,
            rows,
            numbers.view(torch.float64),
            top_ks,
            words.view(torch.int64),
            found[0],
            found[1],
            found[2],
            WIDTH=logits.shape[1],
            BLOCK=min(_BLOCK, padded(logits.shape[1])),
        )
    return found
