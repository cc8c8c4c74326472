"""Asks the kernel that chooses tokens."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
import triton
from torch import Tensor

from penstock.core.choosing import Asked, Found
from penstock.kernels.cuda.candidates import narrow_kernel, scan_kernel
from penstock.kernels.cuda.place import Place, padded
from penstock.kernels.cuda.sampling import choose_kernel
from penstock.kernels.cuda.step import Coming, Staging

# Tokens of a part of a row, and how many of the likeliest of each are held for top-k and top-p.
_BLOCK = 4096
_SLOTS = 256
# Of programs that hold all that a row has left.
_WARPS = 8


class Choosing:
    """Tokens that are chosen meanwhile, and come here by a copy that is waited for only when they are read."""

    def __init__(self, found: Tensor, count: int) -> None:
        """`found`: float64 [3, count or more], whose rows are tokens, peaks and log probabilities."""
        self.tokens = found[0, :count]
        self._count = count
        self._coming = Coming(found)

    def read(self) -> list[Found]:
        """Wait until they are here, and all that was launched before is over."""
        found = self._coming.read().T[: self._count].tolist()
        return [(int(token), peak, logprob) for token, peak, logprob in found]


def chooser(place: Place) -> Callable[[Tensor, Sequence[Asked]], Choosing]:
    """Chooses a token for each that is asked for, of float32 logits [rows, vocabulary] in the memory of `place`.

    Two copies cross the bus, whatever the vocabulary's width is: what is asked, and what was found. The processor waits
    for them only when what was found is read.
    """
    staging = Staging(place.device)

    def choose(logits: Tensor, asked: Sequence[Asked]) -> Choosing:
        with place.current():
            found = launch_choice(logits, questions(staging, asked), any(each[1] > 0 for each in asked))
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


def launch_choice(logits: Tensor, questions: Sequence[Tensor], draws: bool) -> Tensor:
    """float64 [3, questions or one more]: token, peak and log probability for each of `questions`, on the device.

    `draws`: whether any has a temperature above 0.
    """
    rows, top_ks, bits, key_bits = questions
    count, width = len(rows), logits.shape[1]
    # Each row begins at a multiple of 16 bytes, which the compiler makes use of: one kernel is for all counts.
    found = torch.empty((3, count + count % 2), dtype=torch.float64, device=logits.device)
    if not count:
        return found
    numbers, words = bits.view(torch.float64), key_bits.view(torch.int64)
    block = min(_BLOCK, padded(width, 32))
    parts, slots = triton.cdiv(width, block), min(_SLOTS, block)
    sizes = {"WIDTH": width, "PARTS": parts, "BLOCK": block}
    states = logits.new_empty((count, parts, 3), dtype=torch.float64)
    scan_kernel[(count, parts)](logits, rows, states, **sizes)
    sizes |= {"PADDED_PARTS": padded(parts), "SLOTS": slots, "num_warps": _WARPS}
    values, tokens, left = logits, rows, states
    if draws:
        values = logits.new_empty((count, parts, slots))
        tokens = rows.new_empty((count, parts, slots))
        left = torch.empty_like(states)
        narrow_kernel[(count, parts)](logits, rows, numbers, top_ks, words, states, values, tokens, left, **sizes)
    choose_kernel[(count,)](
        logits, rows, numbers, top_ks, words, states, values, tokens, left, found[0], found[1], found[2], **sizes
    )
    return found
