"""Asks the kernel that chooses tokens."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from penstock.core.choosing import Asked, Found
from penstock.kernels.cuda.place import Place, padded
from penstock.kernels.cuda.sampling import choose_kernel

# Columns that a program reads at a time.
_BLOCK = 4096


def chooser(place: Place) -> Callable[[Tensor, Sequence[Asked]], list[Found]]:
    """Chooses a token for each that is asked for, of float32 logits [rows, vocabulary] in the memory of `place`.

    Two copies cross the bus, whatever the vocabulary's width is: what is asked, and what was found.
    """

    def choose(logits: Tensor, asked: Sequence[Asked]) -> list[Found]:
        count = len(asked)
        numbers = torch.tensor(
            [
                [row, *key, temperature, top_p, log_min_p, top_k]
                for row, temperature, top_k, top_p, log_min_p, key in asked
            ],
            dtype=torch.float64,
        ).to(place.device)
        # Each row begins at a multiple of 16 bytes, which the compiler makes use of: one kernel is for all counts.
        found = torch.empty((3, count + count % 2), dtype=torch.float64, device=place.device)
        with place.current():
            choose_kernel[(count,)](
                logits,
                numbers[:, 0].to(torch.int32),
                numbers[:, 4:7].contiguous(),
                numbers[:, 7].to(torch.int32),
                numbers[:, 1:4].to(torch.int64).contiguous(),
                found[0],
                found[1],
                found[2],
                WIDTH=logits.shape[1],
                BLOCK=min(_BLOCK, padded(logits.shape[1])),
            )
        return [(int(token), peak, logprob) for token, peak, logprob in found.T[:count].tolist()]

    return choose
