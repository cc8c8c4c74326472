"""Sizes of a real model, Llama 3.2's with 1.24B parameters, for the cases that are measured."""

from penstock.core.kv import LayerKV
from penstock.kernels.signature import HeadLayout

WIDTH = 2048
INNER = 8192
VOCABULARY = 128_256
HEADS = HeadLayout(32, 8, 64)
KV = LayerKV(HEADS.kv_heads, HEADS.head_dim)
