"""Two optimizers as one: Muon for the matrices inside the layers, AdamW for all else; state as tensors.

Muon: Jordan et al., "Muon: An optimizer for hidden layers in neural networks" (2024), in torch's own implementation.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from training.recipe import Recipe


class Optimizer:
    """Steps both; `scale` of a step multiplies both rates."""

    def __init__(self, model: nn.Module, recipe: Recipe) -> None:
        named = dict(model.named_parameters())
        matrices = [p for name, p in named.items() if p.ndim == 2 and ".layers." in name]
        chosen = set(map(id, matrices))
        others = [p for p in named.values() if id(p) not in chosen]
        self.muon = torch.optim.Muon(matrices, lr=recipe.matrix_rate, momentum=0.95, weight_decay=recipe.weight_decay)
        self.adam = torch.optim.AdamW(others, lr=recipe.embedding_rate, betas=(0.9, 0.95), weight_decay=0.0)
        self.recipe = recipe
        self.parameters = list(named.values())

    def step(self, scale: float) -> None:
        """One step down the gradients that are there, which are clipped and cleared."""
        torch.nn.utils.clip_grad_norm_(self.parameters, self.recipe.gradient_norm)
        for optimizer, rate in ((self.muon, self.recipe.matrix_rate), (self.adam, self.recipe.embedding_rate)):
            for group in optimizer.param_groups:
                group["lr"] = rate * scale
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    def tensors(self) -> dict[str, Tensor]:
        """Everything to go on from, by name."""
        found = {}
        for label, optimizer in (("muon", self.muon), ("adam", self.adam)):
            for index, state in optimizer.state_dict()["state"].items():
                for key, value in state.items():
                    found[f"{label}.{index}.{key}"] = torch.as_tensor(value)
        return found

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Take up what `tensors` gave."""
        for label, optimizer in (("muon", self.muon), ("adam", self.adam)):
            state: dict[int, dict[str, Tensor]] = {}
            for name, value in tensors.items():
                owner, index, key = name.split(".", 2)
                if owner == label:
                    state.setdefault(int(index), {})[key] = value
            optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


def rate_scale(step: int, steps: int, recipe: Recipe) -> float:
    """Warm-up, plateau, linear fall to zero."""
    if step < recipe.warmup_steps:
        return (step + 1) / recipe.warmup_steps
    falling = steps * recipe.decay_share
    return min(1.0, (steps - step) / falling)
