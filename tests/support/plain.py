"""Weights as they are in the files, in numbers."""

from collections.abc import Sequence

from torch import Tensor

from penstock.kernels.packing import Weight
from penstock.layers.weights import WeightSpec
from penstock.loading.quantized import Entry
from penstock.loading.tensors import Kept


class _Plain:
    """Tensors themselves, which the reference operations take."""

    def keeps(self, _spec: WeightSpec, _parts: Sequence[Entry]) -> bool:
        """Numbers only."""
        return False

    def shares(self, _weight: Weight) -> bool:
        """Each has its own."""
        return False

    def rounds_whole(self, _spec: WeightSpec) -> bool:
        """Nothing is rounded."""
        return False

    def __call__(self, _spec: WeightSpec, weight: Tensor | Kept) -> Weight:
        """As it is."""
        return weight if isinstance(weight, Tensor) else weight.numbers()


plain = _Plain()
