"""What a configuration follows from besides options: what a checkpoint says of itself, and what a machine has."""

from typing import Literal

import msgspec

from penstock.core.devices import Gpu, GpuFacts
from penstock.core.kv import LayerKV
from penstock.core.shares import USUAL_UNIT, ExpertPlaces


class KeptIntegers(msgspec.Struct, frozen=True):
    """Weights that files have as integers, or in FP8, which the kernels here take.

    Attributes:
        body, body_bytes: how many of projections, and what these take in memory.
        head, head_bytes: the same of the output head.
        fp8: whether some of them are in FP8.
    """

    body: int = 0
    body_bytes: int = 0
    head: int = 0
    head_bytes: int = 0
    fp8: bool = False


Positions = Literal["turned", "learned", "scaled", "none"]


class ModelFacts(msgspec.Struct, frozen=True):
    """What a checkpoint says of itself.

    Attributes:
        path: its directory.
        stored_dtype: of most of its weights.
        num_parameters: over all tensors that are loaded; a tied head counts once.
        resident_parameters: over all weights that are kept in memory, where a tied head may be a second copy.
        body_parameters, head_parameters: of projections, and of head and embedding, where a tied one counts once:
            what quantization makes smaller.
        max_position_embeddings: the longest context it was made for.
        integers: of its weights, those that stay what they are.
        fp8_numbers: how many that it has in FP8 become numbers on the GPU that computes; 0 on the CPU.
        kv_layers: what its attention layers store.
        usual_length: tokens of a text that it takes unless more are asked for; None: max_position_embeddings.
        encodes: whether it makes vectors, and generates nothing.
        max_source: tokens of the longest source that its encoder was made for; None where it has no sources.
        vocab_size: number of logits.
        blocks: how many it has; some may store nothing. 0: each stores something.
        positions: how it knows them: queries and keys are `turned`, embeddings of them are `learned` and added, queries
            are `scaled` by them besides, or `none` of it.
        heads: for heads that each draft one token, how many there are; None for all else.
        rank_layers: of each of several ranks, what its part of the layers stores; empty: one process has all.
        stage_ends, stage_stores: of stages of a pipeline, behind which layers they end, and which layers that store
            something each has; empty: there are none.
        unit: what inner columns are shared out in between ranks.
        lost_integers: how many weights that one process keeps as the files' integers become numbers in ranks.
        places: where the experts of layers are; `copied_parameters` are in several groups of ranks.
        counts: the file in which choices of experts are to be counted; None: they are not kept.
    """

    path: str
    stored_dtype: str
    num_parameters: int
    resident_parameters: int
    body_parameters: int
    head_parameters: int
    max_position_embeddings: int
    kv_layers: tuple[LayerKV, ...]
    vocab_size: int = 0
    blocks: int = 0
    positions: Positions = "turned"
    heads: int | None = None
    integers: KeptIntegers = KeptIntegers()
    fp8_numbers: int = 0
    usual_length: int | None = None
    encodes: bool = False
    max_source: int | None = None
    rank_layers: tuple[tuple[LayerKV, ...], ...] = ()
    stage_ends: tuple[int, ...] = ()
    stage_stores: tuple[frozenset[int], ...] = ()
    unit: int = USUAL_UNIT
    lost_integers: int = 0
    places: tuple[ExpertPlaces, ...] = ()
    copied_parameters: int = 0
    counts: str | None = None

    @property
    def whole(self) -> bool:
        """Whether a step has to have all tokens of a text, since no layer keeps any."""
        return not self.kv_layers


class MachineFacts(msgspec.Struct, frozen=True):
    """What this process may use.

    Attributes:
        available_memory: bytes that are free now.
        cores: processor cores.
        api_beside: whether an API process works beside the engine.
        cache_folder: where packed weights are kept unless asked otherwise; None without kernels to pack them for.
        exact: a row of a step is computed to the same bits whatever else is in the step, as native kernels do.
        obstacle: why the native kernels cannot run; None where they can.
        gpus: those that this process sees.
        gpu: the one that computes, whose memory is `available_memory`; None where the processor does.
        measures_steps: the engine measures the memory of a step before it sizes the pool.
    """

    available_memory: int
    cores: int
    api_beside: bool = False
    cache_folder: str | None = None
    exact: bool = True
    obstacle: str | None = None
    gpus: GpuFacts = GpuFacts()
    gpu: Gpu | None = None
    measures_steps: bool = False
