"""A transformer of one stack: embedding, blocks with a residual stream, final norm, and the head of a decoder."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from penstock.core.shares import Share, TensorRank, token_shares
from penstock.core.stages import Stage
from penstock.kernels.places import Sines
from penstock.kernels.tape import Tape, Value
from penstock.layers.attention import SelfAttention
from penstock.layers.cross_attention import CrossAttention
from penstock.layers.experts import DenseBesideExperts, MixtureOfExperts
from penstock.layers.latent_attention import LatentAttention
from penstock.layers.layer_inputs import LayerInput, LayerInputs
from penstock.layers.linear import Linear
from penstock.layers.mlp import GatedMlp, PlainMlp
from penstock.layers.norm import Norm
from penstock.layers.weights import HeadCut, WeightPart, WeightSpec

Attention = SelfAttention | LatentAttention
States = Literal["none", "selected", "all"]


@dataclass(frozen=True, slots=True)
class DecoderBlock:
    """Attention and feed-forward, each normalised before or after, or both, as the family does.

    Attributes:
        parallel: whether both read the residual stream as it was before the block, by the one norm where there is
            no other before the MLP.
        summed: whether the norms behind both are of the residual stream with what they made added, as in the first
            transformers (Vaswani et al., Attention Is All You Need, 2017, section 3.1), instead of that alone.
        residual_scale: what results of both are multiplied by before they are added to the residual stream.
        layer_input: what each token's own vector for this layer adds to the residual stream behind both; None: nothing.
        scalar: name of the tensor with the one number that the residual stream is multiplied by in the end; None: none.
        cross: attention to the source, between the other two; None: none.
        before_cross, after_cross: its norms, which are placed as those of the others are.
        summed_by_ranks: whether this is a part of a block that several ranks have, whose results are added.
    """

    before_attention: Norm | None
    attention: Attention
    before_mlp: Norm | None
    mlp: GatedMlp | PlainMlp | MixtureOfExperts | DenseBesideExperts
    after_attention: Norm | None = None
    after_mlp: Norm | None = None
    residual_scale: float | None = None
    parallel: bool = False
    summed: bool = False
    layer_input: LayerInput | None = None
    scalar: str | None = None
    cross: CrossAttention | None = None
    before_cross: Norm | None = None
    after_cross: Norm | None = None
    summed_by_ranks: bool = False

    def of_rank(self, rank: TensorRank) -> "DecoderBlock":
        """What one of several ranks has of it. Raises ConfigurationError where there is too little for all."""
        return replace(self, attention=self.attention.of_rank(rank), mlp=self.mlp.of_rank(rank), summed_by_ranks=True)

    @property
    def adds_later(self) -> bool:
        """Whether what it makes last is still to be added to the residual stream behind it."""
        return not self.summed and self.layer_input is None and self.scalar is None

    @property
    def mixture(self) -> MixtureOfExperts | None:
        """Its mixture of experts, which may have a dense MLP beside it, or None."""
        if isinstance(self.mlp, DenseBesideExperts):
            return self.mlp.experts
        return self.mlp if isinstance(self.mlp, MixtureOfExperts) else None

    @property
    def scalar_weight(self) -> WeightSpec | None:
        """The one number that the residual stream is multiplied by, or None."""
        if self.scalar is None:
            return None
        return WeightSpec(self.scalar, (WeightPart(self.scalar, (1,)),), "norm", neutral=1.0)

    @property
    def weights(self) -> tuple[WeightSpec, ...]:
        """All weights that the block reads."""
        of_cross = (self.before_cross, self.after_cross)
        norms = (self.before_attention, self.after_attention, *of_cross, self.before_mlp, self.after_mlp)
        return (
            *(weight for norm in norms if norm is not None for weight in norm.weights),
            *self.attention.weights,
            *(() if self.cross is None else self.cross.weights),
            *self.mlp.weights,
            *(() if self.layer_input is None else self.layer_input.weights),
            *(() if self.scalar_weight is None else (self.scalar_weight,)),
        )

    def record(
        self, tape: Tape, x: Value | None, residual: Value, *, selects: bool, inputs: Value | None = None
    ) -> tuple[Value | None, Value]:
        """Record the block; `x` is what the block before has yet to add to `residual`, None where that is nothing.

        Returns the same pair for the next. Where it `selects`, only the rows whose logits are wanted go on behind its
        attention. `inputs` are what tokens give all layers, [rows, all], of the rows that go on.
        """
        if self.summed:
            total = residual if x is None else tape.add(residual, x)
            return None, self._record_summed(tape, total, selects=selects)
        made, residual = self._record_both(tape, x, residual, selects=selects)
        if self.layer_input is None and self.scalar_weight is None:
            return made, residual
        total = tape.add(residual, made)
        if self.layer_input is not None:
            assert inputs is not None, "the model has inputs for its layers"
            own = self.layer_input.own(tape, inputs)
            total = tape.add(total, self.layer_input.record(tape, total, own))
        if self.scalar_weight is not None:
            total = tape.scale(total, self.scalar_weight.ref)
        return None, total

    def _record_both(self, tape: Tape, x: Value | None, residual: Value, *, selects: bool) -> tuple[Value, Value]:
        """Attention, that to a source if there is one, and feed-forward."""
        normed, residual = _normed(tape, self.before_attention, x, residual)
        mixed = self.attention.record_mixing(tape, normed)
        if selects:
            mixed, residual = tape.select_rows(mixed), tape.select_rows(residual)
        attended = self.attention.output.record(tape, mixed)
        if self.parallel:
            if self.before_mlp is not None:
                normed = self.before_mlp.record(tape, residual)
            elif selects:
                normed = residual if self.before_attention is None else self.before_attention.record(tape, residual)
            return self._summed(tape, tape.add(attended, self.mlp.record(tape, normed))), residual
        attended = self._made(tape, self._summed(tape, attended), self.after_attention)
        if self.cross is not None:
            normed, residual = _normed(tape, self.before_cross, attended, residual)
            attended = self._made(tape, self.cross.record(tape, normed), self.after_cross)
        normed, residual = _normed(tape, self.before_mlp, attended, residual)
        return self._made(tape, self._fed_forward(tape, normed), self.after_mlp), residual

    def _record_summed(self, tape: Tape, x: Value, *, selects: bool) -> Value:
        """The same with norms of the sums."""
        assert self.after_attention is not None and self.after_mlp is not None, "the sums are normed"
        mixed = self.attention.record_mixing(tape, x)
        if selects:
            mixed, x = tape.select_rows(mixed), tape.select_rows(x)
        attended = self._summed(tape, self.attention.output.record(tape, mixed))
        x = self.after_attention.record(tape, tape.add(attended, x))
        if self.cross is not None:
            assert self.after_cross is not None, "the sums are normed"
            x = self.after_cross.record(tape, tape.add(self.cross.record(tape, x), x))
        return self.after_mlp.record(tape, tape.add(self._fed_forward(tape, x), x))

    def _summed(self, tape: Tape, x: Value) -> Value:
        """What all ranks add to it."""
        return tape.all_reduce(x) if self.summed_by_ranks else x

    def _fed_forward(self, tape: Tape, x: Value) -> Value:
        """What the MLP makes; one with experts beside it sums over ranks before its norms."""
        made = self.mlp.record(tape, x)
        return made if isinstance(self.mlp, DenseBesideExperts) else self._summed(tape, made)

    def _made(self, tape: Tape, x: Value, norm: Norm | None) -> Value:
        """What is added to the residual stream."""
        if norm is not None:
            x = norm.record(tape, x)
        return x if self.residual_scale is None else tape.scale(x, self.residual_scale)


def _normed(tape: Tape, norm: Norm | None, x: Value | None, residual: Value) -> tuple[Value, Value]:
    """What the next layer reads, and the residual stream with `x` added to it, which may be the same."""
    if x is not None and norm is not None:
        return norm.record_add(tape, x, residual)
    if x is not None:
        residual = tape.add(residual, x)
    return (residual if norm is None else norm.record(tape, residual)), residual


def storing_blocks(blocks: Sequence[DecoderBlock]) -> int:
    """How many of them there are up to the last that stores keys and values, or all where none does.

    Behind it, nothing needs what rows would become whose logits are not wanted.
    """
    storing = (index for index, block in enumerate(blocks, 1) if block.attention.kv is not None)
    return max(storing, default=len(blocks))


def cuts_between(blocks: Sequence[DecoderBlock]) -> tuple[int, ...]:
    """The blocks with which a part of them may begin: none behind it reads keys and values of one before."""
    stored = {block.attention.layer: index for index, block in enumerate(blocks) if block.attention.kv is not None}
    reads = [stored.get(block.attention.layer, index) for index, block in enumerate(blocks)]
    return tuple(cut for cut in range(1, len(blocks)) if min(reads[cut:]) >= cut)


@dataclass(frozen=True, slots=True)
class Table:
    """A matrix [skipped + count, width] of the checkpoint, whose last `count` rows are added to embeddings."""

    name: str
    count: int
    skipped: int = 0

    def weight(self, width: int) -> WeightSpec:
        """Its rows that are used, [count, width]."""
        cut = HeadCut(1, self.skipped + self.count, self.skipped, self.count) if self.skipped else None
        part = WeightPart(f"{self.name}.weight", (self.count, width), cut=cut)
        return WeightSpec(part.tensor, (part,), "positions", neutral=0.0)


@dataclass(frozen=True, slots=True)
class Decoder:
    """The whole model.

    Attributes:
        embedding: name of the token embedding in the checkpoint.
        head: name of the output projection in the checkpoint; None where it is the embedding's matrix.
        embedding_scale: what embeddings of tokens are multiplied by; None: nothing.
        positions: embeddings of positions, which are added, from the checkpoint or computed; None: there are none.
        types: embeddings of what tells two texts apart, which are added; None: there are none.
        embedding_norm: of the sum of all embeddings; None: none.
        generates: whether hidden states become logits; else they are what is wanted.
        layer_inputs: what tokens give each layer beside the residual stream; None: nothing.
        embedding_scale_rounded: whether it is rounded to the model's type first.
        logit_cap: bound of the logits; None: none.
        logit_scale: what logits are multiplied by, before they are bounded; None: nothing.
        logit_bias: name of a tensor [1, vocab_size] that is added to the projection; None: nothing.
        states_scale: what hidden states behind the final norm are multiplied by, before the head; None: nothing.
        vocabulary: the tokens of each of several ranks, and `rank` which of them this is; empty: there is one.
        stage: which of its blocks are computed here, others being elsewhere; None: all.
    """

    vocab_size: int
    width: int
    blocks: tuple[DecoderBlock, ...]
    norm: Norm | None
    embedding: str = "model.embed_tokens"
    head: str | None = "lm_head"
    embedding_scale: float | None = None
    embedding_scale_rounded: bool = False
    logit_cap: float | None = None
    logit_scale: float | None = None
    positions: Table | Sines | None = None
    types: Table | None = None
    embedding_norm: Norm | None = None
    generates: bool = True
    layer_inputs: LayerInputs | None = None
    logit_bias: str | None = None
    states_scale: float | None = None
    vocabulary: tuple[Share, ...] = ()
    rank: int = 0
    stage: Stage | None = None

    def of_rank(self, rank: TensorRank) -> "Decoder":
        """What one of several ranks has of the model. Raises ConfigurationError where there is too little for all.

        Each rank has the whole residual stream; what layers, embedding and head make of it is summed, or put together
        (Shoeybi et al., Megatron-LM, 2019, section 3). The first rank alone has the logits of all tokens.
        """
        blocks = tuple(block.of_rank(rank) for block in self.blocks)
        vocabulary = token_shares(self.vocab_size, rank.size)
        return replace(self, blocks=blocks, vocabulary=vocabulary, rank=rank.rank)

    @property
    def own(self) -> Stage:
        """Which of its blocks are computed here."""
        return self.stage or Stage(0, len(self.blocks), len(self.blocks))

    @property
    def own_stores(self) -> frozenset[int]:
        """The KV layers of the blocks that are computed here."""
        blocks = self.blocks[self.own.first : self.own.end]
        return frozenset(block.attention.layer for block in blocks if block.attention.kv is not None)

    @property
    def tokens(self) -> Share | None:
        """The tokens whose embeddings and logits this rank has; None: all."""
        return self.vocabulary[self.rank] if self.vocabulary else None

    @property
    def embedding_weight(self) -> WeightSpec:
        """The matrix [vocab_size, width] whose rows are token embeddings."""
        rows = self.vocab_size if self.tokens is None else self.tokens.count
        part = WeightPart(f"{self.embedding}.weight", (rows, self.width), share=self.tokens)
        return WeightSpec(part.tensor, (part,), "embedding")

    @property
    def embedding_weights(self) -> tuple[WeightSpec, ...]:
        """What `record_embedding` reads."""
        tables = (table.weight(self.width) for table in (self.types, self.positions) if isinstance(table, Table))
        norm = () if self.embedding_norm is None else self.embedding_norm.weights
        return (self.embedding_weight, *tables, *norm)

    @property
    def input_weights(self) -> tuple[WeightSpec, ...]:
        """What `record_inputs` reads; none where blocks have no inputs."""
        return () if self.layer_inputs is None else (*self.embedding_weights, *self.layer_inputs.weights)

    @property
    def output(self) -> Linear:
        """The projection to logits; a weight of its own even where its tensor is the embedding's."""
        every = Linear("lm_head", self.width, ((self.head or self.embedding, self.vocab_size),), head=True)
        return every if self.tokens is None else every.taking((0, self.tokens))

    @property
    def logit_bias_weight(self) -> WeightSpec | None:
        """The vector [vocab_size] that is added to logits, or None."""
        if self.logit_bias is None:
            return None
        cut = HeadCut(1, 1, 0, 1, across=True)
        rows = self.vocab_size if self.tokens is None else self.tokens.count
        part = WeightPart(self.logit_bias, (rows,), cut=cut, share=self.tokens)
        return WeightSpec(part.tensor, (part,), "bias", neutral=0.0)

    @property
    def late_weights(self) -> tuple[WeightSpec, ...]:
        """Those of the blocks that are reached only by rows whose logits are wanted."""
        late = self.blocks[storing_blocks(self.blocks) :]
        return tuple(weight for block in late for weight in block.weights)

    @property
    def weights(self) -> tuple[WeightSpec, ...]:
        """Everything the model reads, in the order of computation."""
        own = self.own
        # Layers may share some.
        blocks = dict.fromkeys(weight for block in self.blocks[own.first : own.end] for weight in block.weights)
        inputs = () if self.layer_inputs is None else self.layer_inputs.weights
        norm = () if self.norm is None else self.norm.weights
        bias = () if self.logit_bias_weight is None else (self.logit_bias_weight,)
        head = (*self.output.weights, *bias) if self.generates else ()
        return (
            *((*self.embedding_weights, *inputs) if own.is_first else ()),
            *blocks,
            *((*norm, *head) if own.is_last else ()),
        )

    def record(self, tape: Tape, *, head: bool = True, states: States = "none", layers: int | None = None) -> None:
        """Record the model; its result is the logits [logit rows, vocab_size].

        Without `head`, or where it does not generate, it is what the head would read: the hidden states behind the
        final norm, [logit rows, width].
        Where `states` are wanted, they are a second result, of the "selected" tokens or of "all". Only the first
        `layers` are recorded where that is given.
        A stage that is not the first is given what the one before has made, and one that is not the last has that as
        its results: the residual stream, what is still to be added to it, and what tokens give layers, if there is any.
        """
        blocks, own = self.blocks[:layers], self.own
        last = storing_blocks(blocks)
        residual, x, inputs = self._record_beginning(tape, selected=last <= own.first)
        for index, block in enumerate(blocks[own.first : own.end], own.first + 1):
            selects = index == last and states != "all"
            if selects and inputs is not None:
                inputs = tape.select_rows(inputs)
            x, residual = block.record(tape, x, residual, selects=selects, inputs=inputs)
        if not own.is_last:
            tape.finish(*(value for value in (residual, x, inputs) if value is not None))
            return
        normed, _ = _normed(tape, self.norm, x, residual)
        if not head or not self.generates:
            tape.finish(normed)
            return
        logits = self.record_logits(tape, tape.select_rows(normed) if states == "all" else normed)
        tape.finish(*((logits,) if states == "none" else (logits, normed)))

    def _record_beginning(self, tape: Tape, *, selected: bool) -> tuple[Value, Value | None, Value | None]:
        """The residual stream before the first block, what is still to be added to it, and what tokens give layers."""
        first = self.own.first
        if not first:
            residual = self.record_embedding(tape)
            return residual, None, self.record_inputs(tape, residual)
        residual = tape.input(self.width, selected=selected)
        x = tape.input(self.width, selected=selected) if self.blocks[first - 1].adds_later else None
        given = self.layer_inputs
        inputs = None if given is None else tape.input(given.layers * given.size, selected=selected)
        return residual, x, inputs

    def record_states(self, tape: Tape) -> Value:
        """Hidden states behind the final norm of all tokens, [tokens, width]."""
        residual = self.record_embedding(tape)
        x: Value | None = None
        for block in self.blocks:
            x, residual = block.record(tape, x, residual, selects=False)
        return _normed(tape, self.norm, x, residual)[0]

    def record_embedding(self, tape: Tape) -> Value:
        """What blocks begin with, [tokens, width]."""
        weight, tokens = self.embedding_weight.ref, self.tokens
        if tokens is None:
            found = tape.embedding(weight, self.width)
        else:
            # A token's row is in one rank, and others have zeros.
            found = tape.all_reduce(tape.embedding(weight, self.width, first=tokens.first, ids=tokens.of))
        if self.embedding_scale is not None:
            found = tape.scale(found, self.embedding_scale, rounded=self.embedding_scale_rounded)
        if self.types is not None:
            found = tape.add(found, tape.types(self.types.weight(self.width).ref, self.width))
        if isinstance(self.positions, Sines):
            found = tape.add(found, tape.sinusoids(self.positions))
        elif self.positions is not None:
            found = tape.add(found, tape.positions(self.positions.weight(self.width).ref, self.width))
        return found if self.embedding_norm is None else self.embedding_norm.record(tape, found)

    def record_inputs(self, tape: Tape, embedded: Value | None = None) -> Value | None:
        """What tokens give all layers beside the residual stream, [tokens, all], by their embeddings; None: nothing."""
        if self.layer_inputs is None:
            return None
        return self.layer_inputs.record(tape, self.record_embedding(tape) if embedded is None else embedded)

    def record_logits(self, tape: Tape, normed: Value) -> Value:
        """Hidden states behind the final norm [rows, width] → logits [rows, vocab_size]."""
        if self.states_scale is not None:
            normed = tape.scale(normed, self.states_scale)
        bias = self.logit_bias_weight
        logits = self.output.record(tape, normed, None if bias is None else bias.ref)
        if self.logit_scale is not None:
            logits = tape.scale(logits, self.logit_scale)
        if self.logit_cap is not None:
            logits = tape.soft_cap(logits, self.logit_cap)
        widths = tuple(share.count for share in self.vocabulary)
        return tape.gather(logits, widths) if widths else logits
