"""What `penstock quantize` is asked for."""

import math
from collections.abc import Collection
from dataclasses import dataclass, replace

import torch

from penstock.core.errors import ConfigurationError
from penstock.quantization.gguf_types import BLOCK_TYPES
from penstock.quantization.layouts import LAYOUTS
from penstock.quantization.rtn import Grid

# What each method makes of weights, and whether texts show it how.
METHODS = ("rtn", "gptq", "awq", "mixed", "smoothquant", "fp8")
UNCALIBRATED = ("rtn", "fp8")
# What matrices of GGUF files are rounded to, by their type. Those of the K types have scales that are integers.
GGUF_TYPES = {
    "Q8_0": Grid(8, 32),
    "Q4_0": Grid(4, 32),
    "Q4_K": Grid(4, 32, symmetric=False, searched=True),
    "Q6_K": Grid(6, 16, searched=True),
}
K_TYPES = ("Q4_K", "Q6_K")
# What matrices are stored as that do not consist of whole blocks of a K type.
IN_SMALLER_BLOCKS = "Q8_0"
# What matrices are stored as by the methods that have a byte for each weight and a scale for each output.
BYTES = {"smoothquant": torch.int8, "fp8": torch.float8_e4m3fn}
_BITS, _GROUP, _DAMPING = 4, 128, 0.01
_BY_GPTQ = ("gptq", "mixed")
# Methods that make inputs larger in one place and smaller in another.
FOLDING = ("awq", "smoothquant")


@dataclass(frozen=True, slots=True)
class Recipe:
    """What is made.

    Attributes:
        method: one of METHODS. "rtn" rounds to the nearest, "gptq" so that errors make up for each other, "awq" with
            inputs that matter made larger, "mixed" as "gptq" with a width for each projection; "smoothquant" and "fp8"
            store int8 and FP8 with a scale for each output, the former with inputs that are hard to round made smaller.
        grid: what weights are rounded to; by the last two methods it is not used.
        layout: one of `quantization.layouts.LAYOUTS`, or of GGUF_TYPES, which a GGUF file has.
        average_bits: of a weight, for "mixed".
        damping, act_order: see `quantize_gptq`.
    """

    method: str
    grid: Grid
    layout: str
    average_bits: float | None = None
    damping: float = _DAMPING
    act_order: bool = True

    @property
    def calibrated(self) -> bool:
        """Whether the method needs texts to calibrate with."""
        return self.method not in UNCALIBRATED

    @property
    def in_gguf(self) -> bool:
        """Whether a GGUF file is made."""
        return self.layout in GGUF_TYPES

    def blocks_of(self, inputs: int) -> str:
        """The type of a GGUF file's matrix with `inputs` inputs."""
        whole = self.layout not in K_TYPES or inputs % BLOCK_TYPES[self.layout].elements == 0
        return self.layout if whole else IN_SMALLER_BLOCKS

    def rows_for(self, inputs: int) -> int:
        """How many rows an expert's projection with `inputs` inputs needs to be rounded by them.

        GPTQ needs as many rows as inputs, methods that only weigh inputs half as many. By fewer, outputs on other texts
        can be much farther off than those of rounding to the nearest (`benchmarks/few_rows.py`).
        """
        return inputs if self.method in _BY_GPTQ else -(-inputs // 2)

    @property
    def widths(self) -> tuple[int, ...]:
        """Those that "mixed" chooses from."""
        return LAYOUTS[self.layout].bits

    def check(self) -> None:
        """Raise ConfigurationError where it contradicts itself."""
        _known("--method", self.method, METHODS)
        _known("--format", self.layout, (*LAYOUTS, *GGUF_TYPES))
        if not (0 < self.damping < math.inf):
            raise ConfigurationError(f"--damping is {self.damping}; it must be above 0.")
        if self.method in (*BYTES, "mixed") and self.layout != "compressed-tensors":
            raise ConfigurationError(
                f"--format {self.layout} cannot hold what --method {self.method} makes; give compressed-tensors."
            )
        if self.layout in K_TYPES and self.method != "rtn":
            raise ConfigurationError(f"--format {self.layout} is made by --method rtn only, which you may give.")
        if self.method == "mixed":
            least, most = min(self.widths), max(self.widths)
            if self.average_bits is None or not (least <= self.average_bits <= most):
                raise ConfigurationError(f"--bits with --method mixed must be an average from {least} to {most}.")
        elif self.method not in BYTES and not self.in_gguf and self.grid.bits not in self.widths:
            raise ConfigurationError(
                f"--format {self.layout} has integers of {', '.join(map(str, self.widths))} bits, not of "
                f"{self.grid.bits}."
            )


def make_recipe(
    method: str,
    layout: str,
    *,
    bits: float | None,
    group: int | None,
    symmetric: bool,
    searched: bool,
    damping: float | None,
    act_order: bool,
) -> Recipe:
    """A recipe with what goes without saying filled in.

    Raises ConfigurationError where it contradicts itself, or asks for what the method has no use for.
    """
    _known("--method", method, METHODS)
    useless: list[tuple[str, bool]] = []
    if method in BYTES:
        useless += [("--bits", bits not in (None, 8)), ("--group-size", group not in (None, 0))]
        useless += [("--asymmetric", not symmetric), ("--no-search", not searched)]
    if method not in _BY_GPTQ:
        useless += [("--damping", damping is not None), ("--no-act-order", not act_order)]
    for option, given in useless:
        if given:
            raise ConfigurationError(f"--method {method} has no use for {option}; leave it out.")
    if layout in GGUF_TYPES:
        own = GGUF_TYPES[layout]
        useless = [("--bits", bits not in (None, own.bits)), ("--group-size", group not in (None, own.group))]
        useless += [("--asymmetric", not symmetric), ("--no-search", not searched and layout in K_TYPES)]
        for option, given in useless:
            if given:
                raise ConfigurationError(f"--format {layout} has its own way of rounding; leave {option} out.")
    if method not in (*BYTES, "mixed") and bits is not None and not bits.is_integer():
        raise ConfigurationError(f"--bits {bits} is not a whole number, which only --method mixed makes on average.")
    if method in BYTES:
        grid = Grid(8, 0)
    elif layout in GGUF_TYPES:
        grid = replace(GGUF_TYPES[layout], searched=searched)
    else:
        whole = _BITS if bits is None or method == "mixed" else int(bits)
        grid = Grid(whole, _GROUP if group is None else group, symmetric, searched)
    average = bits if method == "mixed" else None
    recipe = Recipe(method, grid, layout, average, _DAMPING if damping is None else damping, act_order)
    recipe.check()
    return recipe


def _known(option: str, given: str, known: Collection[str]) -> None:
    if given not in known:
        raise ConfigurationError(f"{option} {given} is not one of {', '.join(known)}.")
