"""What a model would reach on a machine at best, from its headers and the machine's ceilings. Pure arithmetic."""

from collections.abc import Iterator

import msgspec

from penstock.configuration.facts import KeptIntegers
from penstock.core.ceilings import Ceilings
from penstock.core.config import QUANTIZED_BYTES, EngineConfig
from penstock.core.kv import DTYPE_BYTES
from penstock.core.work import kept_bytes
from penstock.doctor.finding import Evidence, Finding, in_bytes, in_number
from penstock.doctor.machine import Disk
from penstock.planning.formats import FORMATS, Format
from penstock.planning.hardware import device_of_ceilings
from penstock.planning.latency import STATE_BYTES, Deployment, least_seconds
from penstock.planning.shape import AttentionShape, LayerShape, MlpShape, ModelShape

# Contexts for which the room for sequences and the speed are told, beside the longest.
_CONTEXTS = (512, 2048)
_BATCHES = (1, 8, 32)
_PROMPT = 1024
# What is smaller may stay in the processor's caches, and be read faster than memory.
_CACHED = 64 << 20


class ModelSize(msgspec.Struct, frozen=True, kw_only=True):
    """How large a model is, by its headers.

    Attributes:
        body, head: of the projections, and of the output head: what each token is multiplied with.
        late: of the body, the projections that only tokens with logits reach.
        integers: of these what the files have as integers that the kernels take.
        config: what it would be served with.
    """

    body: int
    head: int
    config: EngineConfig
    late: int = 0
    integers: KeptIntegers = KeptIntegers()

    def bytes_of(self, body: str, head: str) -> float:
        """Bytes of the weights that a step reads, where they are rounded like this."""
        return self._body_bytes(body) + self._head_bytes(head)

    def _body_bytes(self, kept: str) -> float:
        own = self.integers
        return kept_bytes(self.body, kept, DTYPE_BYTES[self.config.model.dtype], (own.body, own.body_bytes))

    def _head_bytes(self, kept: str) -> float:
        own = self.integers
        return kept_bytes(self.head, kept, DTYPE_BYTES[self.config.model.dtype], (own.head, own.head_bytes))

    @property
    def generates(self) -> bool:
        """Whether there are sequences that go on; an encoder's end with their prompts."""
        return self.config.scheduler.generates

    @property
    def read(self) -> float:
        """Bytes of the weights that a step reads."""
        model = self.config.model
        return self.bytes_of(model.quantization, model.quantize_head)

    def on(self, ceilings: Ceilings, kept: str | None = None) -> Deployment:
        """The model on the processor as plans know it, its weights `kept` like this instead of as it is served.

        Bounds are of sums, so that it does not matter which layer has which weights.
        """
        model, spec = self.config.model, self.config.cache.spec
        layers = [
            LayerShape(1, AttentionShape(0), MlpShape(self.body - self.late)),
            LayerShape(1, AttentionShape(0), MlpShape(self.late), late=True),
        ]
        for group in spec.groups:
            attention = AttentionShape(
                0,
                token_values=sum(map(spec.token_bytes, group.layers)),
                window=group.sees.last,
                sequence_values=0 if group.record_interval is None else round(group.used_bytes / STATE_BYTES),
            )
            layers.append(LayerShape(1, attention, MlpShape(0)))
        body, head = kept or model.quantization, kept or model.quantize_head
        # Where only some of the weights are integers, none are taken to be slower.
        rate = FORMATS[model.dtype].rate if body == "none" else "int8"
        return Deployment(
            ModelShape(hidden=1, vocabulary=self.head, layers=tuple(layers)),
            device_of_ceilings(ceilings, "this processor", memory=0.0),
            weights=Format(8 * self._body_bytes(body) / self.body, rate, "plain"),
            cache=Format(8, "bf16", "plain"),
            head=Format(8 * self._head_bytes(head) / max(1, self.head), rate, "plain"),
        )

    @property
    def format(self) -> str:
        """The format of the projections' weights, such as int4."""
        model = self.config.model
        return model.dtype if model.quantization == "none" else model.quantization


def step_seconds(size: ModelSize, ceilings: Ceilings, sequences: int, context: int) -> float:
    """Least seconds of a step that decodes a token of each of `sequences` sequences."""
    return least_seconds(size.on(ceilings), sequences, sequences, context)


def prompt_seconds(size: ModelSize, ceilings: Ceilings, tokens: int) -> float:
    """Least seconds of a prompt; attention comes on top."""
    return least_seconds(size.on(ceilings), tokens)


def judge_model(size: ModelSize, ceilings: Ceilings | None, disk: Disk | None) -> tuple[Finding, ...]:
    """What the model reaches at best, and what it has room for. `ceilings` are the processor's."""
    measured: tuple[Finding, ...] = ()
    if size.config.device != "cpu":
        measured = (_elsewhere(size.config.device),)
    elif ceilings is not None:
        measured = (_prompts(size, ceilings),)
        if size.generates:
            measured = (_decode(size, ceilings), *measured)
    return (*measured, *((_room(size),) if size.generates else ()), *_start(size, disk))


def _elsewhere(device: str) -> Finding:
    return Finding(
        subject="speed at best",
        layer="L3",
        level="note",
        figure=f"not told of {device}",
        meaning=f"The arithmetic that was measured here is the processor's, and {device} computes this model.",
        advice="`penstock bench kernels --device cuda` measures what the GPU and its kernels reach.",
        evidence=(Evidence(device, "--device"),),
    )


def _decode(size: ModelSize, ceilings: Ceilings) -> Finding:
    context = min(_CONTEXTS[0], size.config.scheduler.max_model_len)
    rates = {count: count / step_seconds(size, ceilings, count, context) for count in _BATCHES}
    alone, *others = (f"{in_number(rate)} with {count}" for count, rate in rates.items())
    cached = size.on(ceilings).cache_bytes(context)
    meaning = (
        f"{in_bytes(size.read)} of weights and {in_bytes(cached)} of KV at {context} tokens are read "
        f"for each token of a sequence alone; at most {', '.join(others)} sequences at a time."
    )
    if size.read < _CACHED:
        meaning += " So little may stay in the processor's caches, and then be faster."
    smaller = [
        f"{in_number(1 / least_seconds(size.on(ceilings, name), 1, 1, context))} with --quantization {name}"
        for name in QUANTIZED_BYTES
        if size.bytes_of(name, name) < size.read
    ]
    return Finding(
        subject="decoding at best",
        layer="L3",
        level="note" if smaller else "ok",
        figure=f"{alone.split()[0]} tokens/s for one sequence",
        meaning=meaning,
        advice=f"One sequence could get {' or '.join(smaller)}." if smaller else None,
        evidence=(
            Evidence(f"{size.body + size.head:,} parameters in a step, as {size.format}", "headers of the checkpoint"),
            Evidence(f"{ceilings.read:.1f} GB/s", "native.read_memory"),
        ),
    )


def _prompts(size: ModelSize, ceilings: Ceilings) -> Finding:
    seconds = prompt_seconds(size, ceilings, _PROMPT)
    target = size.config.scheduler.target_itl
    meaning = f"A prompt of {_PROMPT:,} tokens takes at least {in_number(1000 * seconds)} ms"
    if target is not None and seconds > target:
        meaning += f", so it is computed in about {round(seconds / target) + 1} steps of {target:g} s (--target-itl)"
    return Finding(
        subject="prompts at best",
        layer="L3",
        level="ok",
        figure=f"{in_number(_PROMPT / seconds)} tokens/s",
        meaning=f"{meaning}; attention comes on top, and what the prefix cache has is not computed.",
        evidence=(
            Evidence(f"{size.body:,} parameters in projections", "headers of the checkpoint"),
            Evidence(f"{ceilings.peak(size.format):,.0f} GOP/s in {size.format}", "native.compute"),
        ),
    )


def _room(size: ModelSize) -> Finding:
    config = size.config
    pool, longest, most = config.cache.num_blocks, config.scheduler.max_model_len, config.scheduler.max_num_seqs
    spec = config.cache.spec
    contexts = [tokens for tokens in _CONTEXTS if tokens < longest] + [longest]
    # An encoder–decoder's have a source as long as their outputs.
    source = config.scheduler.max_source or 0
    room = {tokens: pool // spec.blocks_for(tokens, 1, source=min(tokens, source)) for tokens in contexts}
    lines = ", ".join(f"{count:,} of {tokens:,} tokens" for tokens, count in room.items())
    short = room[contexts[0]] < most
    meaning = f"{in_bytes(pool * spec.block_bytes)} of KV hold {lines}; at most {most} run at a time (--max-num-seqs)."
    advice = None
    if short:
        meaning += f" Memory, not --max-num-seqs, is the limit even at {contexts[0]:,} tokens."
        advice = "Free memory, round the weights (--quantization), or expect sequences to wait for blocks."
    return Finding(
        subject="room for sequences",
        layer="L4b",
        level="note" if short else "ok",
        figure=f"{room[contexts[0]]:,} sequences of {contexts[0]:,} tokens",
        meaning=meaning,
        advice=advice,
        evidence=(
            Evidence(f"{pool:,} blocks of {spec.block_size} tokens, {in_bytes(spec.block_bytes)} each", "config.json"),
        ),
    )


def _start(size: ModelSize, disk: Disk | None) -> Iterator[Finding]:
    """Whether its packed weights can be kept."""
    if disk is None or disk.room is None or size.config.model.packed_cache is None:
        return
    fits = size.read <= disk.room
    yield Finding(
        subject="second start",
        layer="L1",
        level="ok" if fits else "warning",
        figure=f"about {in_bytes(size.read)} of packed weights",
        meaning="They fit into their folder: starts after the first take a second or two."
        if fits
        else f"They do not fit into the {in_bytes(disk.room)} that their folder may take: every start packs them anew.",
        advice=None if fits else "Free some of the disk, or name a folder on another one with --packed-cache.",
        evidence=(Evidence(f"room for {in_bytes(disk.room)}", disk.folder),),
    )
