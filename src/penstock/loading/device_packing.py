"""Weights in a GPU's memory: streamed there from mapped files, in the forms that its kernels take."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from penstock.core.errors import ModelFileError
from penstock.kernels.cuda.weights import NIBBLE_RUN, DeviceLinear, fp8_linear, int4_linear, int8_linear
from penstock.kernels.packing import Weight
from penstock.layers.weights import WeightSpec
from penstock.loading.integers import kept_on_gpu
from penstock.loading.quantized import Entry
from penstock.loading.tensors import Kept
from penstock.quantization.grouped import Grouped
from penstock.quantization.rounding import reference_int8, round_int4, round_int8
from penstock.quantization.scaled import Fp8Blocks, RowBytes

# Size of each buffer: while one is being copied to the GPU, the other is filled from the file.
_BUFFER_BYTES = 64 << 20
_BUFFERS = 2


class Uploader:
    """Copies tensors to a device through pinned memory, which the bus reads at its own speed.

    A file's pages are read into one buffer while another is on its way. Where the device is this process's memory,
    tensors are copied at once.
    """

    def __init__(self, device: torch.device, buffer_bytes: int = _BUFFER_BYTES) -> None:
        self.device = device
        self._size = buffer_bytes
        self._buffers: deque[tuple[Tensor, torch.cuda.Event]] = deque()

    def __call__(self, tensor: Tensor) -> Tensor:
        """The same on the device."""
        if tensor.device == self.device and self.device.type != "cpu":
            return tensor
        target = torch.empty(tensor.shape, dtype=tensor.dtype, device=self.device)
        source, bytes_ = tensor.contiguous().view(-1).view(torch.uint8), target.view(-1).view(torch.uint8)
        if self.device.type != "cuda":
            bytes_.copy_(source)
            return target
        for first in range(0, len(source), self._size):
            piece = source[first : first + self._size]
            buffer, event = self._next()
            buffer[: len(piece)].copy_(piece)
            bytes_[first : first + len(piece)].copy_(buffer[: len(piece)], non_blocking=True)
            event.record()
            self._buffers.append((buffer, event))
        return target

    def _next(self) -> tuple[Tensor, torch.cuda.Event]:
        if len(self._buffers) < _BUFFERS:
            return torch.empty(self._size, dtype=torch.uint8, pin_memory=True), torch.cuda.Event()
        buffer, event = self._buffers.popleft()
        event.synchronize()
        return buffer, event


@dataclass(frozen=True, slots=True)
class DevicePacking:
    """Gives weights the forms that kernels on a GPU take, and puts them there.

    Attributes:
        body: "none" for projections in their own precision, "int8" or "int4", "own" for the integers that the files
            have, where they have some that the kernels take.
        head: the same for the output head, and for the embedding.
        device: where they go.
        fp8: whether it multiplies E4M3, which then counts among the integers.
    """

    body: str
    head: str
    device: torch.device
    fp8: bool
    upload: Uploader = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "upload", Uploader(self.device))

    def keeps(self, spec: WeightSpec, parts: Sequence[Entry]) -> bool:
        """Whether the weight stays the integers that its parts are in the files."""
        return self._quantization(spec) == "own" and kept_on_gpu(spec, parts, fp8=self.fp8) is not None

    def shares(self, _weight: Weight) -> bool:
        """Whether an embedding's weight is a tied head's too."""
        return True

    def rounds_whole(self, _spec: WeightSpec) -> bool:
        """A GPU has all columns."""
        return False

    def _quantization(self, spec: WeightSpec) -> str:
        if spec.role in ("positions", "norm", "bias", "router"):
            return "none"
        return self.body if spec.role == "linear" else self.head

    def __call__(self, spec: WeightSpec, weight: Tensor | Kept) -> Weight:
        """The weight on the device. Raises ModelFileError where its values cannot be rounded."""
        if isinstance(weight, Grouped):
            if weight.group_of is not None:
                raise ModelFileError(f"{spec.name} has groups of inputs in an order of their own; take --device cpu.")
            zeros = torch.full(weight.scales.shape, weight.middle) if weight.zeros is None else weight.zeros
            return self._linear(int4_linear(weight.integers, weight.scales, zeros))
        if isinstance(weight, RowBytes):
            return self._linear(int8_linear(weight.values, weight.scales.flatten()))
        if isinstance(weight, Fp8Blocks):
            return self._linear(fp8_linear(weight.values, weight.scales, weight.rows, weight.group))
        numbers = weight if isinstance(weight, Tensor) else weight.numbers()
        quantization = self._quantization(spec)
        if quantization in ("int8", "int4"):
            if quantization == "int4" and numbers.shape[1] % NIBBLE_RUN:
                raise ModelFileError(
                    f"{spec.name} has {numbers.shape[1]} inputs, and int4 on a GPU takes multiples of {NIBBLE_RUN}; "
                    "take --quantization int8."
                )
            return self._rounded(spec, numbers, quantization)
        return self.upload(numbers)

    def _rounded(self, spec: WeightSpec, numbers: Tensor, quantization: str) -> DeviceLinear:
        if quantization == "int8":
            integers, scales = reference_int8(numbers) if numbers.is_cuda else round_int8(numbers)
            found = int8_linear(integers, scales)
        else:
            integers, multiples, scales = round_int4(numbers.cpu())
            steps = (multiples & 15).float() * scales[:, None]
            found = int4_linear(integers, steps.bfloat16(), torch.where(multiples > 15, 7, 8))
        if not scales.isfinite().all():
            raise ModelFileError(
                f"{spec.name} has values that {quantization} cannot hold (infinite, NaN, or near the end of float32); "
                "serve the model without --quantization."
            )
        return self._linear(found)

    def _linear(self, weight: DeviceLinear) -> DeviceLinear:
        zeros = None if weight.zeros is None else self.upload(weight.zeros)
        data, scales = self.upload(weight.data), self.upload(weight.scales)
        return replace(weight, data=data, scales=scales, zeros=zeros)
