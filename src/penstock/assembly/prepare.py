"""Everything that is decided before an engine is built. Reads headers only; needs no torch."""

import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from penstock.assembly.expert_counts import copied_parameters, places_by
from penstock.assembly.layout_choice import with_layout
from penstock.assembly.simulated_config import (
    declared_config,
    deployment_of,
    simulated_of,
    simulated_options,
    simulating,
)
from penstock.bundled.registry import DRAFTS, find_bundled
from penstock.configuration.devices import resolve_device
from penstock.configuration.experts import check_experts
from penstock.configuration.facts import KeptIntegers, MachineFacts, ModelFacts, Positions
from penstock.configuration.options import EngineOptions
from penstock.configuration.ranks import Layout, check_ranks
from penstock.configuration.resolve import reranker_of, resolve
from penstock.configuration.speculation import HEADS
from penstock.core.config import EngineConfig, Reason
from penstock.core.devices import Gpu
from penstock.core.errors import ConfigurationError, ModelFileError, TokenizerError
from penstock.core.sampling import SamplingDefaults
from penstock.core.shares import Stripe, TensorRank
from penstock.core.sourced import Sourced
from penstock.core.stages import stages_of
from penstock.core.text_files import shown
from penstock.core.vectors import VectorModules
from penstock.engine.interface import ModelInfo
from penstock.kernels import signature
from penstock.kernels.cpu.native import OBSTACLE
from penstock.loading.cache_folder import default_folder
from penstock.loading.checkpoint import Checkpoint, open_checkpoint
from penstock.loading.end_tokens import EndTokens, end_tokens
from penstock.loading.fitting import model_of
from penstock.loading.gguf import SUFFIX, is_gguf
from penstock.loading.hub import resolve_model
from penstock.loading.integers import check_whole_panels, common_group, fp8_numbers, kept_integers, lost_integers
from penstock.loading.sourced import read_sourced
from penstock.loading.tokenizers import has_tokenizer, tokenizer_in
from penstock.loading.vector_modules import modules_of
from penstock.models.declaration import ModelDeclaration
from penstock.models.heads import MedusaHeads, declare_heads, size_of
from penstock.runtime.gpus import find_gpus
from penstock.runtime.machine import machine_facts
from penstock.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class Prepared:
    """A model that was found and understood, and the configuration to run it with.

    Attributes:
        options: as the user gave them.
        config: what they resolved to, and `reasons` why.
        checkpoint, declaration: the model's files and its meaning.
        integers: what the files have as integers that the kernels of the device that computes take.
        vectors: what the files say of vectors.
        found: of the reasons, those that the files gave: what in them is not as config.json says, or not read.
    """

    options: EngineOptions
    config: EngineConfig
    reasons: list[Reason]
    checkpoint: Checkpoint
    declaration: ModelDeclaration
    integers: KeptIntegers
    vectors: VectorModules = VectorModules()
    found: tuple[Reason, ...] = ()

    def load_tokenizer(self) -> Tokenizer | None:
        """The tokenizer, checked against the model; None where the model's directory has none.

        Raises TokenizerError where it cannot be used.
        """
        return tokenizer_in(Path(self.config.model.tokenizer), self.declaration.vocab_size)

    def end_tokens(self, tokenizer: Tokenizer | None) -> EndTokens:
        """What ends an output; see the function."""
        return end_tokens(self.checkpoint, tokenizer, self.declaration.vocab_size)

    def served_names(self, asked: tuple[str, ...] = ()) -> tuple[str, ...]:
        """The names under which the model is served: those asked for, or its own."""
        return asked or (_served_name(self.options.model),)

    def model_info(self, tokenizer: Tokenizer | None, names: tuple[str, ...] = ()) -> ModelInfo:
        """The model as its users know it; `names` are those under which it is served."""
        names = self.served_names(names)
        return ModelInfo(
            name=names[0],
            aliases=names[1:],
            max_model_len=self.config.scheduler.max_model_len,
            vocab_size=self.declaration.vocab_size,
            embedding_size=self.vectors.size(self.declaration.decoder.width),
            vectors=self.vectors,
            generates=self.declaration.decoder.generates,
            eos_token_ids=self.end_tokens(tokenizer).ids,
            created=int(time.time()),
            kv_policy=self.config.kv_policy,
            keeps_conversations=self.config.cache.disk is not None,
            sourced=self.sourced(tokenizer),
        )

    @property
    def sampling(self) -> SamplingDefaults:
        """Sampling parameters where a request is silent. Raises ModelFileError.

        Where no file says otherwise, an encoder–decoder's output is the likeliest: of what it was made for, little is
        left to chance.
        """
        found = self.checkpoint.generation_config
        greedy = self.config.scheduler.max_source is not None and not found.get("do_sample")
        defaults = SamplingDefaults.from_generation_config(found)
        return msgspec.structs.replace(defaults, temperature=0.0) if greedy else defaults

    def sourced(self, tokenizer: Tokenizer | None) -> Sourced | None:
        """How an encoder–decoder's outputs begin; None for all other models. Raises ModelFileError."""
        longest = self.config.scheduler.max_source
        if longest is None:
            return None
        return read_sourced(self.checkpoint, tokenizer, self.declaration.vocab_size, longest)


def _served_name(model: str) -> str:
    """A bundled or hub name as it is, a path by its last part: clients have no use for this machine's paths."""
    if find_bundled(model) is not None:
        return model
    path = Path(model).expanduser()
    if path.is_dir():
        return shown(path.resolve().name)
    # A file may be a link into a cache, whose names say nothing.
    return shown(path.name).removesuffix(SUFFIX) if is_gguf(path) else model


@dataclass(frozen=True)
class Examined:
    """A model that was found and understood, before its options are resolved.

    Attributes:
        facts: what it says of itself; `drafts` those of the models that draft for it.
        told: what users should know of the files of these.
    """

    options: EngineOptions
    path: Path
    checkpoint: Checkpoint
    declaration: ModelDeclaration
    vectors: VectorModules
    facts: ModelFacts
    drafts: tuple[ModelFacts, ...]
    told: tuple[Reason, ...]


def prepare(options: EngineOptions, *, api_beside: bool, obstacle: str | None = OBSTACLE) -> Prepared:
    """Find the model, read its headers, and resolve the configuration. Raises StartupError.

    `api_beside` says whether the engine gets a process of its own, with a busy one beside it; `obstacle` why the native
    kernels cannot run, None where they can.
    """
    machine = this_machine(api_beside=api_beside, obstacle=obstacle)
    return configure(examine(options, machine), machine)


def this_machine(*, api_beside: bool, obstacle: str | None = OBSTACLE) -> MachineFacts:
    """What an engine may use now; the arguments are those of `prepare`."""
    folder = str(default_folder()) if obstacle is None else None
    machine = machine_facts(api_beside=api_beside, cache_folder=folder, obstacle=obstacle)
    return msgspec.structs.replace(machine, gpus=find_gpus())


def examine(options: EngineOptions, machine: MachineFacts) -> Examined:
    """Find the model, and read its headers. Raises StartupError."""
    native, simulated = machine.obstacle is None, simulated_of(options)
    path, checkpoint, declaration = _open(options.model, options)
    gpu = resolve_device(options.device.device, machine.gpus, lambda *_note: None)
    options, chosen = with_layout(options, path, checkpoint, machine, gpu)
    vectors = modules_of(checkpoint, declaration, reranker_of(options.loading))
    if (why := vectors.obstacle(declaration.decoder.width)) is not None:
        raise ModelFileError(f"{path}: {why}")
    drafts, told = [], [*chosen]
    if simulated is None and (drafting := draft_model_of(options)) is not None:
        # Elsewhere a chain model is of no use, which is said before it is looked for.
        chain = options.speculation.chain_model
        chained = () if chain is None or options.speculation.proposer != "chain" else (chain,)
        for role, each in zip(("draft model", "chain model"), (drafting, *chained), strict=False):
            facts, found = _draft_facts(each, options, declaration, native=native)
            drafts.append(facts)
            told += [Reason(f"{role}'s {reason.setting}", reason.value, reason.why) for reason in found]
    tokenizer = options.loading.tokenizer
    if tokenizer is not None and not has_tokenizer(Path(tokenizer)):
        raise TokenizerError(f"--tokenizer {tokenizer}: there is no tokenizer.json in it.")
    facts = _facts(path, checkpoint, declaration, native=native, gpu=gpu)
    facts = msgspec.structs.replace(facts, usual_length=vectors.longest, **_of_ranks(checkpoint, declaration, options))
    return Examined(options, path, checkpoint, declaration, vectors, facts, tuple(drafts), tuple(told))


def configure(model: Examined, machine: MachineFacts) -> Prepared:
    """Resolve the configuration of a model on a machine. Raises StartupError."""
    options, asked, simulated = model.options, model.options, simulated_of(model.options)
    if simulated is not None:
        options, machine = simulated_options(options, machine, deployment_of(simulated, declared_config(model.path)))
    config, reasons = resolve(options, model.facts, machine, model.drafts)
    if config.model.quantization in ("int8", "int4") and config.device == "cpu":
        # Before anything is loaded.
        for spec in model.declaration.weights:
            check_whole_panels(spec)
    if simulated is not None:
        pool_asked = asked.cache.kv_cache_memory is not None
        config, reasons = simulating(config, reasons, simulated, own_pool=pool_asked)
    found = (*model.checkpoint.found, *model.declaration.found, *model.told)
    return Prepared(
        options=asked,
        config=config,
        reasons=[*reasons, *found],
        checkpoint=model.checkpoint,
        declaration=model.declaration,
        integers=model.facts.integers,
        vectors=model.vectors,
        found=found,
    )


def draft_model_of(options: EngineOptions) -> str | None:
    """The model that drafts: the one that is asked for, or the bundled one that belongs to a bundled model."""
    drafts = options.speculation
    if drafts.draft_model is not None or drafts.proposer not in ("auto", "draft", "chain"):
        return drafts.draft_model
    return DRAFTS.get(options.model) if find_bundled(options.model) is not None else None


def _open(model: str, options: EngineOptions) -> tuple[Path, Checkpoint, ModelDeclaration]:
    """A model's directory, its files, and what they mean."""
    path = resolve_model(model)
    loaded = options.loading.load_format != "dummy" and options.device.simulate is None
    checkpoint = open_checkpoint(path, weights=loaded)
    return path, checkpoint, model_of(checkpoint)


def _draft_facts(
    model: str, options: EngineOptions, target: ModelDeclaration, *, native: bool
) -> tuple[ModelFacts, tuple[Reason, ...]]:
    """Reads what the model that drafts, or the heads, say of themselves, and what users should know of their files."""
    proposer = options.speculation.proposer
    if proposer not in HEADS:
        path, checkpoint, declaration = _open(model, options)
        return _facts(path, checkpoint, declaration, native=native), (*checkpoint.found, *declaration.found)
    path = resolve_model(model)
    checkpoint = open_checkpoint(path)
    heads = declare_heads(proposer, checkpoint.config, checkpoint.tensors, target)
    whole, body, head = size_of(heads)
    facts = ModelFacts(
        path=str(path),
        stored_dtype=target.dtype,
        num_parameters=whole,
        resident_parameters=whole,
        body_parameters=body,
        head_parameters=head,
        max_position_embeddings=target.max_position_embeddings,
        kv_layers=heads.kv_layers,
        vocab_size=heads.vocab_size,
        heads=heads.heads if isinstance(heads, MedusaHeads) else None,
    )
    return facts, checkpoint.found


def _facts(
    path: Path, checkpoint: Checkpoint, declaration: ModelDeclaration, *, native: bool, gpu: Gpu | None = None
) -> ModelFacts:
    packed = native or gpu is not None
    return ModelFacts(
        path=str(path),
        stored_dtype=declaration.dtype,
        num_parameters=declaration.num_parameters,
        # The native kernels, and those for GPUs, look embeddings up in the head.
        resident_parameters=declaration.num_parameters if packed else declaration.resident_parameters,
        body_parameters=declaration.parameters_in("linear"),
        head_parameters=declaration.parameters_in("head", "embedding", "table"),
        max_position_embeddings=declaration.max_position_embeddings,
        kv_layers=declaration.kv_layers,
        vocab_size=declaration.vocab_size,
        blocks=len(declaration.decoder.blocks),
        positions=_positions(declaration),
        integers=kept_integers(checkpoint, declaration, gpu=gpu) if packed else KeptIntegers(),
        fp8_numbers=0 if gpu is None else fp8_numbers(checkpoint, declaration, gpu),
        encodes=not declaration.decoder.generates,
        max_source=None if declaration.encoder is None else declaration.max_source,
    )


def _of_ranks(checkpoint: Checkpoint, declaration: ModelDeclaration, options: EngineOptions) -> dict[str, Any]:
    """What facts say of ranks, where several processes compute. Raises ConfigurationError where they cannot."""
    layout = check_ranks(options)
    room, counts = check_experts(options, layout.experts, layout.stages)
    file = None if counts is None else Path(counts)
    if layout.size == 1:
        return {}
    facts: dict[str, Any] = {"rank_layers": (declaration.kv_layers,)}
    if layout.stripes > 1:
        stripes = [declaration.of_stripe(Stripe(rank, layout.stripes)) for rank in range(layout.stripes)]
        return {"rank_layers": tuple(part.kv_layers for part in stripes)}
    if layout.split > 1:
        facts = _of_split(checkpoint, declaration, layout, room, file)
    if layout.stages > 1:
        ends = declaration.stage_ends(layout.stages)
        stores = tuple(declaration.of_stage(stage).decoder.own_stores for stage in stages_of(ends))
        facts |= {"stage_ends": ends, "stage_stores": stores}
    return facts


def _of_split(
    checkpoint: Checkpoint, declaration: ModelDeclaration, layout: Layout, room: int, file: Path | None
) -> dict[str, Any]:
    """The same of processes that have a part of every layer; `file` says where experts are, with `room` for copies."""
    if layout.experts > 1 and not declaration.mixtures:
        raise ConfigurationError(
            f"--expert-parallel-size is {layout.experts}, but {declaration.architecture} has no experts; leave it out."
        )
    unit = common_group(checkpoint, declaration)
    first = TensorRank(0, layout.split, unit, layout.experts)
    places = () if file is None else places_by(file, declaration, first, room)
    parts = [declaration.of_rank(replace(first, rank=rank, places=places)) for rank in range(layout.split)]
    lost = sum(lost_integers(checkpoint, declaration, part) for part in parts)
    return {
        "unit": unit,
        "rank_layers": tuple(part.kv_layers for part in parts),
        "lost_integers": lost,
        "places": places,
        "copied_parameters": copied_parameters(declaration, places),
        # What is there is left as it is, so that every start has the same places.
        "counts": None if file is None or file.exists() else str(file.absolute()),
    }


def _positions(declaration: ModelDeclaration) -> Positions:
    """How a model knows positions, by its operations."""
    found = {type(step.operation) for step in declaration.record().steps}
    if signature.Positions in found:
        return "learned"
    if signature.QueryScale in found:
        return "scaled"
    return "turned" if signature.Rotary in found else "none"


def engine_command(python: str) -> list[str]:
    """The command of an engine process, to which the descriptors of its socket and its record are appended."""
    # -P: the current directory may be a downloaded model's, and nothing in it may be imported.
    return [python, "-P", "-m", "penstock.assembly"]
