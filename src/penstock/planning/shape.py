"""What a model is made of, as numbers: parameters by part, what a token keeps, what attention computes."""

from collections.abc import Iterable
from math import pow

import msgspec


class AttentionShape(msgspec.Struct, frozen=True):
    """The attention, or what stands in its place, of one layer.

    Attributes:
        parameters: of its projections.
        token_values: numbers that the cache keeps of one token; they are split over devices by KV head.
        kv_heads: key and value heads; 0 where a token's state has none, so that each device keeps the whole.
        pair_operations: products and sums of a prompt for one query and one position that it sees, over all heads.
        window: positions that a token sees, itself included; None: all before it.
        sequence_values: numbers that are kept once a sequence, as recurrent layers do.
        borrowed_values: numbers of one token that it reads where another layer keeps them.
        query_heads, head_size: of queries, and columns of what each of them comes to; 0 where there is no attention.
        mixed_values: numbers of a token that its output projection is given.
        normed: whether all query heads of a token are normed together, and all its key heads.
    """

    parameters: int
    token_values: int = 0
    kv_heads: int = 0
    pair_operations: int = 0
    window: int | None = None
    sequence_values: int = 0
    borrowed_values: int = 0
    query_heads: int = 0
    head_size: int = 0
    mixed_values: int = 0
    normed: bool = False

    def values_on_each(self, split: int) -> float:
        """Numbers that one of `split` devices keeps of one token.

        A device has whole key heads, so that more devices than heads keep copies (Pope et al., 2022, section 3.3).
        State without heads is kept by each.
        """
        return self.token_values * self._share(split)

    def read_on_each(self, split: int) -> float:
        """Numbers that one of `split` devices reads of one token."""
        return (self.token_values + self.borrowed_values) * self._share(split)

    def _share(self, split: int) -> float:
        return max(1.0 / split, 1.0 / self.kv_heads) if self.kv_heads else 1.0

    def seen(self, context: float) -> float:
        """Of a context, the tokens that are kept for later ones."""
        return context if self.window is None else min(context, self.window)


class MlpShape(msgspec.Struct, frozen=True):
    """What follows attention in one layer.

    Attributes:
        parameters: that each token uses, with a router and shared experts.
        experts, chosen: how many routed experts there are, and how many of them a token uses.
        expert_parameters: of one routed expert.
        sums: how many of its results are added up over devices that have parts of it; 0 where attention's is added to
            it before.
    """

    parameters: int
    experts: int = 0
    chosen: int = 0
    expert_parameters: int = 0
    sums: int = 1

    def touched(self, tokens: float) -> float:
        """Routed experts that at least one of a number of tokens uses, where each token chooses at random."""
        if not self.experts:
            return 0.0
        return self.experts * (1.0 - pow(1.0 - self.chosen / self.experts, tokens))


class LayerShape(msgspec.Struct, frozen=True):
    """Layers that are alike, and how many there are.

    They are `late` where they store nothing and none that stores comes behind them: only tokens with logits reach them.
    """

    count: int
    attention: AttentionShape
    mlp: MlpShape
    late: bool = False


class ModelShape(msgspec.Struct, frozen=True):
    """A decoder.

    Attributes:
        hidden: width of the residual stream.
        vocabulary: rows of the head.
        tied: whether the head is the embedding.
        max_context: tokens of the longest sequence that the model was made for; 0: not known.
        assumed: what its description does not say, and what was taken instead.
        table_parameters: of tables beside the embedding; a token needs one row of each.
        held: tokens of a context that are held at most, where a policy bounds it.
        handed_values: numbers of a token that go from a layer to the next: the residual stream, and what is to be added
            to it, or what tokens give all layers.
        input_values: numbers that a token gives all layers beside the residual stream.
    """

    hidden: int
    vocabulary: int
    layers: tuple[LayerShape, ...]
    tied: bool = False
    max_context: int = 0
    assumed: tuple[str, ...] = ()
    table_parameters: int = 0
    held: int | None = None
    handed_values: int = 0
    input_values: int = 0

    @property
    def num_layers(self) -> int:
        """How many layers there are of all kinds."""
        return sum(layer.count for layer in self.layers)

    @property
    def head_parameters(self) -> int:
        """Of the head, or of the embedding alone."""
        return self.hidden * self.vocabulary

    @property
    def attention_parameters(self) -> int:
        """Parameters of all layers' attention, or of what stands in its place."""
        return sum(layer.count * layer.attention.parameters for layer in self.layers)

    @property
    def mlp_parameters(self) -> int:
        """Of all layers, without routed experts."""
        return sum(layer.count * layer.mlp.parameters for layer in self.layers)

    @property
    def expert_parameters(self) -> int:
        """Parameters of the routed experts of all layers."""
        return sum(layer.count * layer.mlp.experts * layer.mlp.expert_parameters for layer in self.layers)

    @property
    def parameters(self) -> int:
        """All of them, but for norms and biases."""
        ends = self.head_parameters * (1 if self.tied else 2)
        layers = self.attention_parameters + self.mlp_parameters + self.expert_parameters
        return ends + layers + self.table_parameters

    @property
    def active_parameters(self) -> int:
        """Those that one token's forward pass multiplies by, with the head."""
        return self.head_parameters + self.attention_parameters + self.mlp_parameters + self.routed_parameters

    @property
    def routed_parameters(self) -> int:
        """Of the routed experts that one token uses, over all layers."""
        return sum(layer.count * layer.mlp.chosen * layer.mlp.expert_parameters for layer in self.layers)

    @property
    def late_parameters(self) -> int:
        """Of the active ones, those of late layers, without routed experts."""
        return sum(
            layer.count * (layer.attention.parameters + layer.mlp.parameters) for layer in self.layers if layer.late
        )

    def products(self, tokens: float, logits: float) -> float:
        """Products with parameters in a step of `tokens`, where `logits` of them have logits."""
        ends = self.head_parameters + self.late_parameters
        return (self.active_parameters - ends) * tokens + ends * logits

    @property
    def routes(self) -> bool:
        """Whether any layer has routed experts."""
        return any(layer.mlp.experts for layer in self.layers)

    def kept_values(self, context: float, split: int = 1) -> float:
        """Numbers that one of `split` devices keeps of the tokens of a sequence of `context` tokens."""
        return sum(
            layer.count * layer.attention.values_on_each(split) * layer.attention.seen(context) for layer in self.layers
        )

    def read_values(self, context: float, split: int = 1) -> float:
        """Numbers that one of `split` devices reads of the tokens of a sequence, some of them for several layers."""
        return sum(
            layer.count * layer.attention.read_on_each(split) * layer.attention.seen(context) for layer in self.layers
        )

    @property
    def sequence_values(self) -> int:
        """Numbers that all devices together keep of a sequence, however long it is."""
        return sum(layer.count * layer.attention.sequence_values for layer in self.layers)


def grouped(layers: Iterable[tuple[AttentionShape, MlpShape]]) -> tuple[LayerShape, ...]:
    """Layers that are alike together, in the order in which each kind comes first; those that borrow are the last."""
    counts: dict[tuple[AttentionShape, MlpShape], int] = {}
    for layer in layers:
        counts[layer] = counts.get(layer, 0) + 1
    return tuple(
        LayerShape(count, attention, mlp, attention.borrowed_values > 0) for (attention, mlp), count in counts.items()
    )
