"""A decoder-only transformer: embedding, blocks with a residual stream, final norm and head."""

from dataclasses import dataclass
from typing import Literal

from penstock.kernels.tape import Tape, Value
from penstock.layers.attention import SelfAttention
from penstock.layers.linear import Linear
from penstock.layers.mlp import GatedMlp
from penstock.layers.norm import RmsNorm
from penstock.layers.weights import WeightPart, WeightSpec

States = Literal["none", "selected", "all"]


@dataclass(frozen=True, slots=True)
class DecoderBlock:
    """Attention and feed-forward, each normalised before, and after where the family does so.

    Where there is no norm before attention, the block is the first of its model.
    """

    before_attention: RmsNorm | None
    attention: SelfAttention
    before_mlp: RmsNorm
    mlp: GatedMlp
    after_attention: RmsNorm | None = None
    after_mlp: RmsNorm | None = None

    @property
    def weights(self) -> tuple[WeightSpec, ...]:
        """All weights that the block reads."""
        norms = (self.before_attention, self.after_attention, self.before_mlp, self.after_mlp)
        return (
            *(norm.weight for norm in norms if norm is not None),
            *self.attention.weights,
            *self.mlp.weights,
        )

    def record(self, tape: Tape, x: Value | None, residual: Value, *, last: bool) -> tuple[Value, Value]:
        """Record the block; `x` is what the block before has yet to add to `residual` (None in the first).

        Returns the same pair for the next. In the last block only the rows whose logits are wanted go on, since
        nothing else needs what the others would become.
        """
        if self.before_attention is None:
            normed = residual
        elif x is None:
            normed = self.before_attention.record(tape, residual)
        else:
            normed, residual = self.before_attention.record_add(tape, x, residual)
        mixed = self.attention.record_mixing(tape, normed)
        if last:
            mixed, residual = tape.select_rows(mixed), tape.select_rows(residual)
        attended = self.attention.output.record(tape, mixed)
        if self.after_attention is not None:
            attended = self.after_attention.record(tape, attended)
        normed, residual = self.before_mlp.record_add(tape, attended, residual)
        fed = self.mlp.record(tape, normed)
        if self.after_mlp is not None:
            fed = self.after_mlp.record(tape, fed)
        return fed, residual


@dataclass(frozen=True, slots=True)
class Decoder:
    """The whole model.

    Attributes:
        embedding: name of the token embedding in the checkpoint.
        head: name of the output projection in the checkpoint; None where it is the embedding's matrix.
        embedding_scale: what embeddings are multiplied by; None: nothing.
        logit_cap: bound of the logits; None: none.
    """

    vocab_size: int
    width: int
    blocks: tuple[DecoderBlock, ...]
    norm: RmsNorm
    embedding: str = "model.embed_tokens"
    head: str | None = "lm_head"
    embedding_scale: float | None = None
    logit_cap: float | None = None

    @property
    def embedding_weight(self) -> WeightSpec:
        """The matrix [vocab_size, width] whose rows are token embeddings."""
        part = WeightPart(f"{self.embedding}.weight", (self.vocab_size, self.width))
        return WeightSpec(part.tensor, (part,), "embedding")

    @property
    def output(self) -> Linear:
        """The projection to logits; a weight of its own even where its tensor is the embedding's."""
        return Linear("lm_head", self.width, ((self.head or self.embedding, self.vocab_size),), head=True)

    @property
    def weights(self) -> tuple[WeightSpec, ...]:
        """Everything the model reads, in the order of computation."""
        blocks = (weight for block in self.blocks for weight in block.weights)
        return (self.embedding_weight, *blocks, self.norm.weight, *self.output.weights)

    def record(self, tape: Tape, *, head: bool = True, states: States = "none", layers: int | None = None) -> None:
        """Record the model; its result is the logits [logit rows, vocab_size].

        Without `head` it is what the head would read: the hidden states behind the final norm, [logit rows, width].
        Where `states` are wanted, they are a second result, of the "selected" tokens or of "all". Only the first
        `layers` are recorded where that is given.
        """
        blocks = self.blocks[:layers]
        residual = tape.embedding(self.embedding_weight.ref, self.width)
        if self.embedding_scale is not None:
            residual = tape.scale(residual, self.embedding_scale)
        x: Value | None = None
        for block in blocks:
            x, residual = block.record(tape, x, residual, last=block is blocks[-1] and states != "all")
        assert x is not None
        normed, _ = self.norm.record_add(tape, x, residual)
        if not head:
            tape.finish(normed)
            return
        logits = self.output.record(tape, tape.select_rows(normed) if states == "all" else normed)
        if self.logit_cap is not None:
            logits = tape.soft_cap(logits, self.logit_cap)
        tape.finish(*((logits,) if states == "none" else (logits, normed)))
