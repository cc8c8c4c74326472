"""What native/src/module*.cpp offer. Tensors are taken as they are, without a copy; wrong shapes raise ValueError."""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

_Int64s = NDArray[np.int64]
_Choice = tuple[int, int, int, float, int, float, float, int, int, int, int]

def packed_bytes(
    format: str, outputs: int, inputs: int, group: int = 0, zero_points: bool = False, ordered: bool = False
) -> int: ...
def set_threads(threads: int) -> None: ...
def threads() -> int: ...
def operations_done() -> int: ...
def instruction_sets() -> list[str]: ...
def instruction_set() -> str: ...
def use_instruction_set(name: str) -> None: ...
def round_int8(values: Tensor, integers: Tensor, scales: Tensor) -> None: ...
def round_int4(values: Tensor, integers: Tensor, multiples: Tensor, scales: Tensor) -> None: ...
def choose(
    logits: NDArray[np.float32],
    choices: Sequence[_Choice],
    masks: NDArray[np.uint32],
) -> list[tuple[int, float, float, list[int], list[float]]]: ...
def read_memory(memory: Tensor) -> int: ...
def compute(type: str, rounds: int) -> int: ...

class Weight:
    def __init__(
        self, format: str, outputs: int, inputs: int, group: int, zero_points: bool, ordered: bool, memory: Tensor
    ) -> None: ...
    def fill_dense(self, values: Tensor) -> None: ...
    def fill_int8(self, values: Tensor, scales: Tensor) -> None: ...
    def fill_int4(self, values: Tensor, multiples: Tensor, scales: Tensor) -> None: ...
    def fill_blocks(self, raw: Tensor) -> None: ...
    def fill_grouped(
        self, values: Tensor, scales: Tensor, zeros: Tensor | None = None, order: Tensor | None = None
    ) -> None: ...
    def multiply(self, x: Tensor, output: Tensor, bias: Tensor | None = None) -> None: ...
    def look_up(self, ids: Tensor, output: Tensor) -> None: ...

def ranks_bytes(size: int) -> int: ...

class Ranks:
    def __init__(self, memory: NDArray[np.uint8], rank: int, size: int, patience: float) -> None: ...
    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def written(self) -> int: ...
    @property
    def waited(self) -> int: ...
    def sum(self, values: NDArray[np.float32]) -> None: ...
    def gather(
        self,
        values: NDArray[np.float32],
        rows: int,
        widths: Sequence[int],
        everywhere: bool,
        whole: NDArray[np.float32],
    ) -> None: ...
    def meet(self) -> None: ...
    def beat(self) -> None: ...
    def at_meeting(self, action: Callable[[], None] | None) -> None: ...
    def beats(self, rank: int) -> int: ...
    def part(self) -> None: ...

class Program:
    def __init__(self, registers: int) -> None: ...
    def embedding(self, weight: Weight, y: int, first: int = 0, all: int | None = None) -> None: ...
    def all_reduce(self, ranks: Ranks, x: int, y: int) -> None: ...
    def gather(
        self, ranks: Ranks, widths: Sequence[int], everywhere: bool, x: int, y: int, *, stripe: tuple[int, int] = ...
    ) -> None: ...
    def share_rows(self, x: int, y: int, *, stripe: tuple[int, int]) -> None: ...
    def gather_rows(self, ranks: Ranks, x: int, y: int) -> None: ...
    def positions(self, table: Tensor, y: int) -> None: ...
    def types(self, table: Tensor, y: int) -> None: ...
    def plain_embedding(self, table: Tensor, y: int, first: int = 0, all: int | None = None) -> None: ...
    def linear(
        self, weight: Weight, bias: Tensor | None, x: int, y: int, first: int = 0, width: int | None = None
    ) -> None: ...
    def head_linear(self, weight: Weight, heads: int, x: int, y: int) -> None: ...
    def rms_norm(self, weight: Tensor, eps: float, x: int, y: int) -> None: ...
    def layer_norm(self, weight: Tensor, bias: Tensor | None, eps: float, x: int, y: int) -> None: ...
    def add_rms_norm(self, weight: Tensor, eps: float, x: int, residual: int, y: int, total: int) -> None: ...
    def head_norm(
        self,
        query_heads: int,
        kv_heads: int,
        size: int,
        query: Tensor,
        key: Tensor,
        values: bool,
        eps: float,
        x: int,
        y: int,
    ) -> None: ...
    def route(
        self,
        weight: Weight,
        bias: Tensor | None,
        correction: Tensor | None,
        scales: Tensor | None,
        chosen: int,
        sigmoid: bool,
        renormalise: bool,
        epsilon: float,
        scale: float,
        groups: int,
        kept_groups: int,
        best_of_group: int,
        x: int,
        routed: int,
    ) -> None: ...
    def experts(
        self,
        gate_up: Weight,
        down: Weight,
        gate_up_bias: Tensor | None,
        down_bias: Tensor | None,
        experts: int,
        gate: str,
        x: int,
        routed: int,
        y: int,
        holders: Sequence[Sequence[int]] | None = None,
        group: int = 0,
        groups: int = 1,
        choices: NDArray[np.int64] | None = None,
    ) -> None: ...
    def sigmoid_gate(self, x: int, gate: int, y: int) -> None: ...
    def add_rope(self, table: Tensor) -> int: ...
    def set_rope(self, index: int, table: Tensor) -> None: ...
    def rotary(
        self,
        query_heads: int,
        kv_heads: int,
        size: int,
        rope: int,
        selected: bool,
        x: int,
        y: int,
        *,
        stripe: tuple[int, int] = ...,
    ) -> None: ...
    def query_scale(
        self,
        query_heads: int,
        kv_heads: int,
        size: int,
        beta: float,
        context: int,
        selected: bool,
        x: int,
        y: int,
        *,
        stripe: tuple[int, int] = ...,
    ) -> None: ...
    def write_kv(
        self,
        query_heads: int,
        kv_heads: int,
        planes: list[Tensor],
        kept: str,
        type: str,
        group: int,
        x: int,
        *,
        stripe: tuple[int, int] = ...,
    ) -> None: ...
    def attention(
        self,
        query_heads: int,
        planes: list[Tensor],
        kept: str,
        type: str,
        group: int,
        factor: float,
        window: int,
        softcap: float,
        sinks: Tensor | None,
        bias: Tensor | None,
        selected: bool,
        x: int,
        y: int,
        *,
        stripe: tuple[int, int] = ...,
    ) -> None: ...
    def merge_stripes(self, query_heads: int, size: int, ranks: int, sinks: Tensor | None, x: int, y: int) -> None: ...
    def source_attention(
        self,
        query_heads: int,
        planes: list[Tensor],
        kept: str,
        type: str,
        group: int,
        factor: float,
        selected: bool,
        x: int,
        y: int,
    ) -> None: ...
    def row_attention(
        self,
        query_heads: int,
        kv_heads: int,
        size: int,
        type: str,
        factor: float,
        window: int,
        bias: Tensor | None,
        x: int,
        y: int,
    ) -> None: ...
    def gated_linear(self, weight: Weight, bias: Tensor | None, gate: str, x: int, y: int) -> None: ...
    def gated_activation(self, gate: str, x: int, y: int) -> None: ...
    def activation(self, name: str, x: int, y: int) -> None: ...
    def add(self, x: int, other: int, y: int) -> None: ...
    def concatenate(self, heads: int, x: int, other: int, y: int) -> None: ...
    def columns(self, heads: int, first: int, count: int, x: int, y: int) -> None: ...
    def scale(self, factor: float, x: int, y: int) -> None: ...
    def soft_cap(self, cap: float, x: int, y: int) -> None: ...
    def select_rows(self, x: int, y: int, *, stripe: tuple[int, int] = ...) -> None: ...
    def begin_rows(self, given: list[tuple[int, int]], made: list[tuple[int, int, int]]) -> None: ...
    def end_rows(self) -> None: ...
    def run(
        self,
        ids: _Int64s,
        positions: _Int64s,
        added: list[int],
        context: list[int],
        selected: _Int64s,
        tables: Sequence[NDArray[np.int32]],
        block_size: int,
        shared: _Int64s,
        inputs: list[tuple[int, Tensor]],
        outputs: Sequence[tuple[int, Tensor | NDArray[np.float32]]],
        dropped: Sequence[_Int64s] = (),
        weighed: list[int] = [],
        masses: Sequence[NDArray[np.float32]] = (),
        types: _Int64s | None = None,
    ) -> None: ...
    def decode(
        self,
        ids: _Int64s,
        positions: _Int64s,
        added: list[int],
        context: list[int],
        selected: _Int64s,
        tables: Sequence[NDArray[np.int32]],
        block_size: int,
        shared: _Int64s,
        logits: int,
        vocabulary: int,
        tokens: Sequence[int],
        choices: Sequence[_Choice],
        ranks: Sequence[int],
        feedback: tuple[int, int, Tensor] | None = None,
    ) -> list[tuple[list[int], list[float]]]: ...
