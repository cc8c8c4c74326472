"""What rounding a model's weights costs: its distributions against the unrounded model's, on the same text."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

# Where the reference's two best tokens are nearer to each other than this, which is first says little.
CLEAR_MARGIN = 0.1


@dataclass(frozen=True, slots=True)
class Quality:
    """Figures over all positions of the texts compared.

    Attributes:
        positions: how many there were.
        kl: mean Kullback-Leibler divergence from the reference's distribution to the candidate's, in nats.
        same_top: share of positions at which both have the same most likely token.
        clear_positions: those at which the reference's two best probabilities differ by more than CLEAR_MARGIN.
        clear_same_top: the same share among them.
        reference_perplexity, perplexity: of the text, by the reference and by the candidate.
    """

    positions: int
    kl: float
    same_top: float
    clear_positions: int
    clear_same_top: float
    reference_perplexity: float
    perplexity: float


@dataclass(slots=True)
class Comparison:
    """Adds texts up, one after another."""

    _kl: list[Tensor] = field(default_factory=list)
    _same: list[Tensor] = field(default_factory=list)
    _clear: list[Tensor] = field(default_factory=list)
    _losses: list[tuple[Tensor, Tensor]] = field(default_factory=list)

    def add(self, reference: Tensor, candidate: Tensor, tokens: Tensor) -> None:
        """Logits [positions, vocabulary] of both at the same positions, and the tokens that follow there."""
        right = torch.log_softmax(reference.double(), -1)
        found = torch.log_softmax(candidate.double(), -1)
        self._kl.append((right.exp() * (right - found)).sum(-1))
        best = right.exp().topk(2, -1)
        self._same.append(best.indices[:, 0] == found.argmax(-1))
        self._clear.append(best.values[:, 0] - best.values[:, 1] > CLEAR_MARGIN)
        at = tokens[:, None]
        self._losses.append((-right.gather(1, at)[:, 0], -found.gather(1, at)[:, 0]))

    def result(self) -> Quality:
        """The figures so far; raises ValueError where nothing was added."""
        if not self._kl:
            raise ValueError("There is nothing to compare yet.")
        same, clear = torch.cat(self._same), torch.cat(self._clear)
        reference, candidate = (torch.cat(losses) for losses in zip(*self._losses, strict=True))
        return Quality(
            positions=len(same),
            kl=float(torch.cat(self._kl).mean()),
            same_top=float(same.double().mean()),
            clear_positions=int(clear.sum()),
            clear_same_top=float(same[clear].double().mean()),
            reference_perplexity=float(reference.mean().exp()),
            perplexity=float(candidate.mean().exp()),
        )
