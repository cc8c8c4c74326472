"""The decoders of Llama and of Qwen3-MoE in plain PyTorch, as they are trained: no cache, whole sequences, float32.

Parameters carry the names and shapes that checkpoints of these families have, so that saving them is all there is to
exporting them. Rotary embedding after Su et al., "RoFormer" (2021), rotating halves; RMSNorm after Zhang and Sennrich
(2019); SwiGLU after Shazeer, "GLU Variants Improve Transformer" (2020); experts after Shazeer et al., "Outrageously
Large Neural Networks" (2017), as Qwen3 has them (Yang et al., "Qwen3 Technical Report", 2025, section 2).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class ModelShape:
    """Sizes of a decoder; widths and head sizes in elements.

    Without `experts` it is Llama, whose layers have an MLP of `intermediate`. With them it is Qwen3-MoE, whose layers
    have so many experts of `intermediate` each, `chosen` of them for each row, and whose queries and keys are normed.
    """

    vocabulary: int
    layers: int
    width: int
    heads: int
    kv_heads: int
    intermediate: int
    context: int
    rope_theta: float = 10_000.0
    norm_epsilon: float = 1e-5
    init_std: float = 0.02
    experts: int = 0
    chosen: int = 0

    @property
    def head_dim(self) -> int:
        return self.width // self.heads


class RMSNorm(nn.Module):
    """x / rms(x) * weight over the last dimension."""

    def __init__(self, width: int, epsilon: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.epsilon = epsilon

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x.float(), (x.shape[-1],), self.weight, self.epsilon)


def rotary_tables(shape: ModelShape, device: torch.device) -> tuple[Tensor, Tensor]:
    """Cosines and sines, each [context, head_dim]."""
    frequencies = shape.rope_theta ** (
        -torch.arange(0, shape.head_dim, 2, device=device, dtype=torch.float32) / shape.head_dim
    )
    angles = torch.outer(torch.arange(shape.context, device=device, dtype=torch.float32), frequencies)
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Rotary embedding of x [batch, heads, positions, head_dim]."""
    first, second = x.chunk(2, dim=-1)
    turned = torch.cat((-second, first), dim=-1)
    return x * cosines.to(x.dtype) + turned * sines.to(x.dtype)


def document_lengths(tokens: Tensor, begin: int) -> list[int]:
    """Lengths of the pieces that rows of tokens fall into, end to end: one starts with each row and each `begin`."""
    starts = tokens == begin
    starts[:, 0] = True
    at = torch.cat((starts.flatten().nonzero().flatten().cpu(), torch.tensor([tokens.numel()])))
    return at.diff().tolist()


def causal_attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Attention of [heads, positions, head_dim] to itself and before; the same shape.

    On a CPU the whole score matrix costs less than half of the fused operation, whose backward is slow.
    """
    if query.is_cuda:
        return F.scaled_dot_product_attention(query[None], key[None], value[None], is_causal=True)[0]
    heads, positions, head_dim = query.shape
    future = torch.full((positions, positions), float("-inf"), dtype=query.dtype).triu(1)
    scores = torch.baddbmm(future.expand(heads, -1, -1), query, key.transpose(1, 2), alpha=head_dim**-0.5)
    return torch.softmax(scores, dim=-1) @ value


class Attention(nn.Module):
    """Causal grouped-query attention inside pieces of the rows."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = shape.heads, shape.kv_heads, shape.head_dim
        self.q_proj = nn.Linear(shape.width, shape.heads * shape.head_dim, bias=False)
        self.k_proj = nn.Linear(shape.width, shape.kv_heads * shape.head_dim, bias=False)
        self.v_proj = nn.Linear(shape.width, shape.kv_heads * shape.head_dim, bias=False)
        self.o_proj = nn.Linear(shape.heads * shape.head_dim, shape.width, bias=False)
        if shape.experts:
            self.q_norm, self.k_norm = (RMSNorm(shape.head_dim, shape.norm_epsilon) for _ in range(2))
        else:
            self.q_norm, self.k_norm = nn.Identity(), nn.Identity()

    def forward(self, x: Tensor, cosines: Tensor, sines: Tensor, lengths: list[int]) -> Tensor:
        rows, positions, _ = x.shape

        def split(projected: Tensor, heads: int, norm: nn.Module) -> Tensor:
            return norm(projected.view(rows, positions, heads, self.head_dim)).transpose(1, 2)

        def flat(part: Tensor) -> Tensor:
            return part.transpose(0, 1).reshape(self.heads, rows * positions, self.head_dim)

        groups = self.heads // self.kv_heads
        query = rotate(split(self.q_proj(x), self.heads, self.q_norm), cosines, sines)
        key = rotate(split(self.k_proj(x), self.kv_heads, self.k_norm), cosines, sines)
        value = split(self.v_proj(x), self.kv_heads, nn.Identity())
        query, key, value = flat(query), *(flat(part.repeat_interleave(groups, dim=1)) for part in (key, value))
        pieces = zip(*(part.split(lengths, dim=1) for part in (query, key, value)), strict=True)
        mixed = torch.cat([causal_attention(*piece) for piece in pieces], dim=1)
        return self.o_proj(mixed.transpose(0, 1).reshape(rows, positions, -1))


class MLP(nn.Module):
    """down(silu(gate(x)) * up(x))."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.width, shape.intermediate, bias=False)
        self.up_proj = nn.Linear(shape.width, shape.intermediate, bias=False)
        self.down_proj = nn.Linear(shape.intermediate, shape.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Routed(NamedTuple):
    """What a router says of rows: each expert's chance [rows, experts]; which are chosen and what they count for.

    `chosen` and `weights` are [rows, chosen]; the weights of a row sum to 1.
    """

    chances: Tensor
    chosen: Tensor
    weights: Tensor


class Router(nn.Linear):
    """Chooses each row's experts: the likeliest by a softmax in float32, whose chances are divided by their sum."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__(shape.width, shape.experts, bias=False)
        self.chosen = shape.chosen

    def forward(self, x: Tensor) -> Routed:
        with torch.autocast(x.device.type, enabled=False):
            chances = torch.softmax(super().forward(x.float()), dim=-1)
        best, chosen = chances.topk(self.chosen, dim=-1)
        return Routed(chances, chosen, best / best.sum(dim=-1, keepdim=True))


class Mixture(nn.Module):
    """A router, and MLPs whose results it adds up for each row."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.gate = Router(shape)
        self.experts = nn.ModuleList(MLP(shape) for _ in range(shape.experts))

    def forward(self, x: Tensor) -> Tensor:
        rows = x.flatten(0, -2)
        routed = self.gate(rows)
        experts = routed.chosen.flatten()
        # Sorted by expert, so that each multiplies all its rows at once.
        order = experts.argsort(stable=True)
        owners = order // self.gate.chosen
        parts = rows.index_select(0, owners).split(experts.bincount(minlength=len(self.experts)).tolist())
        made = torch.cat([expert(part) for expert, part in zip(self.experts, parts, strict=True)])
        made = made * routed.weights.flatten()[order, None]
        return torch.zeros_like(rows).index_add(0, owners, made.to(rows.dtype)).view_as(x)


def balance_loss(routed: Routed) -> Tensor:
    """How unevenly rows fall on experts: 1 where both the choices and the chances are even, up to the experts' number.

    The experts' number times the sum of f · P over them, f being an expert's share of the choices and P its mean chance
    (Fedus et al., "Switch Transformers", 2021, section 2.2, without its factor; of all choices of a row).
    """
    experts = routed.chances.shape[-1]
    shares = routed.chosen.flatten().bincount(minlength=experts) / routed.chosen.numel()
    return experts * (shares * routed.chances.mean(dim=0)).sum()


class Layer(nn.Module):
    """Attention and MLP or experts, each on a normed input, each added to the residual stream."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.self_attn = Attention(shape)
        self.mlp = Mixture(shape) if shape.experts else MLP(shape)
        self.input_layernorm = RMSNorm(shape.width, shape.norm_epsilon)
        self.post_attention_layernorm = RMSNorm(shape.width, shape.norm_epsilon)

    def forward(self, x: Tensor, cosines: Tensor, sines: Tensor, lengths: list[int]) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), cosines, sines, lengths)
        return x + self.mlp(self.post_attention_layernorm(x))


class Body(nn.Module):
    """Embedding, layers and final norm: everything but the output head."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(shape.vocabulary, shape.width)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        self.norm = RMSNorm(shape.width, shape.norm_epsilon)


class Decoder(nn.Module):
    """Token ids [batch, positions] to hidden states; the output head is the embedding (tied)."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.shape = shape
        self.model = Body(shape)
        self.apply(self._initialise)
        for name, weight in self.model.layers.named_parameters():
            # Residual branches start smaller, so that depth does not grow the stream (GPT-2, section 2.3).
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                nn.init.normal_(weight, std=shape.init_std / (2 * shape.layers) ** 0.5)

    def _initialise(self, module: nn.Module) -> None:
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=self.shape.init_std)

    def streams(self, tokens: Tensor, lengths: list[int] | None = None) -> Iterator[Tensor]:
        """The residual stream behind each layer, [rows, positions, width].

        With `lengths` (see `document_lengths`) a position looks back to the start of its piece, else of its row.
        """
        pieces = [tokens.shape[1]] * tokens.shape[0] if lengths is None else lengths
        cosines, sines = rotary_tables(self.shape, tokens.device)
        cosines, sines = cosines[: tokens.shape[1]], sines[: tokens.shape[1]]
        x = self.model.embed_tokens(tokens)
        for layer in self.model.layers:
            x = layer(x, cosines, sines, pieces)
            yield x

    def hidden(self, tokens: Tensor, lengths: list[int] | None = None) -> Tensor:
        """Hidden states behind the final norm, [rows, positions, width]; `lengths` as for `streams`."""
        *_, last = self.streams(tokens, lengths)
        return self.model.norm(last)

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits [..., vocabulary] of hidden states [..., width]."""
        return F.linear(hidden, self.model.embed_tokens.weight)
