"""Every operation on small odd shapes, which the tests compare, and on those of real models, which are measured."""

from penstock.kernels.cases.attention import CASES as _ATTENTION
from penstock.kernels.cases.case import Case
from penstock.kernels.cases.experts import CASES as _EXPERTS
from penstock.kernels.cases.linear import CASES as _LINEAR
from penstock.kernels.cases.norm import CASES as _NORM
from penstock.kernels.cases.rotary import CASES as _ROTARY
from penstock.kernels.cases.row_attention import CASES as _ROW_ATTENTION
from penstock.kernels.cases.rows import CASES as _ROWS
from penstock.kernels.cases.source_attention import CASES as _SOURCE_ATTENTION

CASES: tuple[Case, ...] = (
    *_LINEAR,
    *_EXPERTS,
    *_ATTENTION,
    *_SOURCE_ATTENTION,
    *_ROW_ATTENTION,
    *_NORM,
    *_ROTARY,
    *_ROWS,
)

__all__ = ["CASES", "Case"]
