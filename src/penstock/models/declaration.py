"""What a family says about a model: everything the engine needs to know before a weight is read."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from penstock.core.config import RanksConfig, Reason
from penstock.core.errors import ConfigurationError
from penstock.core.kv import LayerKV
from penstock.core.shares import Stripe, TensorRank
from penstock.core.stages import Stage, balanced
from penstock.core.vectors import VectorModules
from penstock.kernels.places import LongRope
from penstock.kernels.tape import Tape
from penstock.layers.decoder import Decoder, DecoderBlock, States, cuts_between
from penstock.layers.experts import MixtureOfExperts
from penstock.layers.weights import WeightRole, WeightSpec, parameters


def stored_by(blocks: Iterable[DecoderBlock]) -> tuple[LayerKV, ...]:
    """What blocks keep of a token, of those that store anything; then what they keep of their sources' tokens."""
    blocks = tuple(blocks)
    own = tuple(kv for block in blocks if (kv := block.attention.kv) is not None)
    return own + tuple(block.cross.kv for block in blocks if block.cross is not None)


@dataclass(frozen=True, slots=True)
class ModelDeclaration:
    """A model as data.

    Attributes:
        architecture: as in config.json, e.g. "LlamaForCausalLM".
        family: short name, e.g. "llama".
        vocab_size: number of logits; token ids are below it.
        max_position_embeddings: longest context it was made for, in tokens.
        dtype: type of the stored weights: "float32", "bfloat16" or "float16".
        decoder: its layers.
        encoder: what makes states of a source, which the decoder's layers ask; None: requests have no source.
        max_source: longest source it was made for, in tokens; 0 without an encoder.
        tensor_prefixes: (ours, checkpoint's) beginnings of tensor names that may stand for each other.
        unused_tensors: patterns of tensors that may be in the files and are not needed.
        notes: what the user should know, shown at start.
        found: what the files hold otherwise than the configuration says.
        classifier: what its architecture has behind the transformer, of one that sorts texts into classes.
        stripe: what one of several ranks keeps of contexts; None: all of them.
    """

    architecture: str
    family: str
    vocab_size: int
    max_position_embeddings: int
    dtype: str
    decoder: Decoder
    encoder: Decoder | None = None
    max_source: int = 0
    tensor_prefixes: tuple[tuple[str, str], ...] = ()
    unused_tensors: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    found: tuple[Reason, ...] = ()
    classifier: VectorModules | None = None
    stripe: Stripe | None = None

    @property
    def mixtures(self) -> tuple[MixtureOfExperts, ...]:
        """The mixtures of experts of its layers, in order."""
        return tuple(block.mixture for block in self.decoder.blocks if block.mixture is not None)

    @property
    def kv_layers(self) -> tuple[LayerKV, ...]:
        """What each layer that stores some keys and values keeps of a token."""
        return stored_by(self.decoder.blocks)

    @property
    def causal(self) -> bool:
        """Whether tokens see those before them alone, and layers keep them; else all see all, within a step."""
        return bool(self.kv_layers)

    @property
    def weights(self) -> tuple[WeightSpec, ...]:
        """Every weight that operations read; what the encoder's and the decoder's read is there once."""
        if self.encoder is None:
            return self.decoder.weights
        return tuple(dict.fromkeys((*self.encoder.weights, *self.decoder.weights)))

    @property
    def num_parameters(self) -> int:
        """Number of distinct parameters; a tied head counts once."""
        return parameters(self.weights)

    @property
    def resident_parameters(self) -> int:
        """Number of parameters kept in memory where torch packs them: a tied head is a second copy of the embedding."""
        return sum(weight.size for weight in self.weights)

    def parameters_in(self, *roles: WeightRole) -> int:
        """Number of distinct parameters in weights of these roles."""
        return parameters(self.weights, *roles)

    @property
    def used_parameters(self) -> int:
        """Number of parameters of projections that one token is multiplied by; of experts only its own count.

        Of an encoder–decoder they are those of the decoder.
        """
        return sum(weight.used for weight in self.decoder.weights if weight.role == "linear")

    @property
    def late_parameters(self) -> int:
        """Those of them that only tokens whose logits are wanted are multiplied by, but for the head's."""
        return sum(weight.used for weight in self.decoder.late_weights if weight.role == "linear")

    @property
    def inert_tensors(self) -> tuple[str, ...]:
        """Patterns of all tensors that may be in the files and are not needed.

        A head in the files is one where it is the embedding's matrix once more: `loading.fitting` has compared them.
        """
        tied = () if self.decoder.head is not None else ("lm_head.weight", "*.lm_head.weight")
        return (*self.unused_tensors, *tied)

    def of_rank(self, rank: TensorRank) -> "ModelDeclaration":
        """What one of several ranks has of the model.

        Raises ConfigurationError where there is too little for all ranks, or the model's kind is not shared out.
        """
        self._check_shared_out("--tensor-parallel-size")
        # Biases of what is summed are the first rank's.
        return self._with_part(self.decoder.of_rank(rank))

    def of_stage(self, stage: Stage) -> "ModelDeclaration":
        """What one stage of a pipeline has of the model."""
        return self._with_part(replace(self.decoder, stage=stage))

    def of_ranks(self, ranks: RanksConfig, rank: int) -> "ModelDeclaration":
        """What one of several processes has of the model: some of its layers, or a part of each, or both.

        Or all of them, and a part of each context.
        """
        part = self.of_rank(ranks.part(rank)) if ranks.split > 1 else self
        stripe, stage = ranks.stripe(rank), ranks.stage(rank)
        part = part if stripe is None else part.of_stripe(stripe)
        return part if stage is None else part.of_stage(stage)

    def stage_ends(self, stages: int) -> tuple[int, ...]:
        """Behind which layers each of several stages ends, so that a token costs the costliest as little as can be.

        Raises ConfigurationError where there cannot be that number of them, or the model's kind has none.
        """
        self._check_shared_out("--pipeline-parallel-size")
        blocks, head = self.decoder.blocks, self.parameters_in("head") if self.decoder.generates else 0
        costs = [sum(weight.used for weight in block.weights if weight.role == "linear") for block in blocks]
        return balanced(costs, cuts_between(blocks), stages, head)

    def _check_shared_out(self, option: str) -> None:
        """Raise ConfigurationError where several processes cannot have parts of the model, as the option asks for."""
        if self.encoder is not None:
            raise ConfigurationError(
                f"{option} is not implemented for encoder–decoders such as {self.architecture}; leave it out."
            )

    def _with_part(self, decoder: Decoder) -> "ModelDeclaration":
        """With a part of the decoder; others have the rest of the tensors."""
        others = {part.tensor for weight in self.decoder.weights for part in weight.parts}
        others -= {part.tensor for weight in decoder.weights for part in weight.parts}
        names = [
            theirs + name.removeprefix(ours)
            for name in sorted(others)
            for ours, theirs in (("", ""), *self.tensor_prefixes)
            if name.startswith(ours)
        ]
        return replace(self, decoder=decoder, unused_tensors=(*self.unused_tensors, *names))

    def of_stripe(self, stripe: Stripe) -> "ModelDeclaration":
        """The model in one of several ranks that each have all of it, and keep a part of each context.

        Raises ConfigurationError where contexts of the model's kind are not shared out.
        """
        size = stripe.size
        self._check_shared_out("--context-parallel-size")
        if not self.causal:
            raise ConfigurationError(
                f"--context-parallel-size is {size}, but {self.architecture} keeps nothing of its texts that could be "
                "shared out; leave it out."
            )
        return replace(self, stripe=stripe)

    def up_to(self, context: int) -> "ModelDeclaration":
        """The same model for contexts of at most `context` tokens, on which rotary embeddings may depend."""

        def block_of(block: DecoderBlock) -> DecoderBlock:
            rope = block.attention.rope
            if rope is None or not isinstance(rope.scaling, LongRope):
                return block
            turned = replace(rope, scaling=rope.scaling.up_to(context))
            return replace(block, attention=replace(block.attention, rope=turned))

        blocks = tuple(map(block_of, self.decoder.blocks))
        return self if blocks == self.decoder.blocks else replace(self, decoder=replace(self.decoder, blocks=blocks))

    def record(self, *, head: bool = True, states: States = "none", layers: int | None = None) -> Tape:
        """The model, or its first `layers`, as a list of operations; see `Decoder.record`."""
        tape = Tape(self.stripe)
        self.decoder.record(tape, head=head, states=states, layers=layers)
        return tape

    def record_encoder(self) -> Tape:
        """The encoder, and what stores keys and values of its states for each of the decoder's layers.

        It is for rows that have all tokens of their sources, at positions from 0 on. Its result are the states,
        [tokens, width].
        """
        assert self.encoder is not None, "requests have sources"
        tape = Tape()
        states = self.encoder.record_states(tape)
        for block in self.decoder.blocks:
            if block.cross is not None:
                block.cross.record_source(tape, states)
        tape.finish(states)
        return tape
