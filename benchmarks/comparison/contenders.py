"""Who is compared: each contender's driver, model and options, and what it takes to run it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

DRIVERS = Path(__file__).parent.parent / "peers"
OURS = "penstock"
PEERS = ("vllm", "llama-cpp", "openvino", "transformers")
LARGE, TOY, TRAINED, MOE, MIXTRAL = "large", "toy", "trained", "moe", "mixtral"
GPT_OSS, MLA = "gpt-oss", "mla"
MACHINE = "machine"
# A toy's whole measurement takes less than a second, so that more runs cost nothing.
TOY_RUNS = 5
LEFT_OUT = "left out by --contenders"
# A model that people use, as its makers publish it.
TRAINED_FILE = "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf"


@dataclass(frozen=True)
class Contender:
    """An engine in one of its modes.

    Attributes:
        name: as the page and the options call it.
        engine: whose environment it runs in: "penstock" or one of PEERS.
        models: the checkpoints that it runs, and the file or folder of each, below the folder of all models.
        make: the command for the first of them.
        options: of its driver.
    """

    name: str
    engine: str
    models: Mapping[str, str]
    make: str
    options: tuple[str, ...] = ()

    @property
    def driver(self) -> Path:
        """The script that measures it."""
        return DRIVERS / f"bench_{self.engine.replace('-', '_')}.py"


def _ours(mode: str, *options: str) -> Contender:
    models = {LARGE: "bf16", TOY: "toy", MOE: "moe", MIXTRAL: "mixtral", MLA: "mla"}
    return Contender(f"{OURS}-{mode}", OURS, models, "make_checkpoints.py OUT bf16", options)


def _of_file(kind: str, models: Mapping[str, str], make: str) -> tuple[Contender, ...]:
    """Ours and llama.cpp on one GGUF file."""
    ours = Contender(f"{OURS}-{kind}", OURS, models, make, ("--quantization", "auto"))
    return ours, Contender(f"llama-cpp-{kind}", "llama-cpp", models, make)


CONTENDERS = (
    _ours("bf16"),
    _ours("int8", "--quantization", "int8"),
    _ours("int4", "--quantization", "int4"),
    _ours("int4-head8", "--quantization", "int4", "--quantize-head", "int8"),
    Contender(
        "vllm-bf16",
        "vllm",
        {LARGE: "bf16", TOY: "toy", MOE: "moe", MIXTRAL: "mixtral", MLA: "mla"},
        "make_checkpoints.py OUT bf16",
    ),
    Contender("vllm-w8a8", "vllm", {LARGE: "w8a8"}, "make_checkpoints.py OUT w8a8"),
    *_of_file("q4_0", {LARGE: "q4_0.gguf"}, "make_checkpoints.py OUT gguf-q4_0"),
    *_of_file(
        "moe-q4_0", {MOE: "moe.q4_0.gguf", MIXTRAL: "mixtral.q4_0.gguf"}, "make_checkpoints.py OUT gguf-moe-q4_0"
    ),
    *_of_file(
        "moe-q8_0", {MOE: "moe.q8_0.gguf", MIXTRAL: "mixtral.q8_0.gguf"}, "make_checkpoints.py OUT gguf-moe-q8_0"
    ),
    *_of_file("mxfp4", {GPT_OSS: "gpt-oss.mxfp4.gguf"}, "make_checkpoints.py OUT gguf-gpt-oss"),
    *_of_file("mla-q4_0", {MLA: "mla.q4_0.gguf"}, "make_checkpoints.py OUT gguf-mla-q4_0"),
    *_of_file("q4_k_m", {LARGE: "q4_k_m.gguf"}, "make_checkpoints.py OUT gguf-q4_k_m"),
    Contender("openvino-int8", "openvino", {LARGE: "ov8"}, "peers/export_openvino.py OUT/bf16 OUT/ov8 --bits 8"),
    Contender(
        "openvino-int4",
        "openvino",
        {LARGE: "ov4", MOE: "moe.ov4", MIXTRAL: "mixtral.ov4", GPT_OSS: "gpt-oss.ov4"},
        "peers/export_openvino.py OUT/bf16 OUT/ov4 --bits 4",
    ),
    Contender("transformers-bf16", "transformers", {LARGE: "bf16"}, "make_checkpoints.py OUT bf16"),
    *_of_file("trained", {TRAINED: TRAINED_FILE}, "hf download Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF"),
)


def running(checkpoint: str) -> list[str]:
    """The names of those that run a checkpoint."""
    return [contender.name for contender in CONTENDERS if checkpoint in contender.models]


@dataclass(frozen=True)
class Workload:
    """What is asked of every engine; the other lengths are constants of the drivers.

    Attributes:
        decode_steps: further tokens of each sequence, whose time is that of decoding.
        runs: how often a child times each of its figures; the best counts.
        threads: of the computation.
        batch_sizes: of decoding.
    """

    decode_steps: int = 64
    runs: int = 2
    threads: int = 2
    batch_sizes: tuple[int, ...] = (1, 4, 16, 32)


@dataclass(frozen=True)
class Job:
    """One child process: a contender on one checkpoint, or the measurement of the machine."""

    contender: str
    checkpoint: str
    command: tuple[str, ...]


@dataclass(frozen=True)
class Plan:
    """What one round runs, in this order, and why the rest is missing (by contender, or contender and checkpoint)."""

    jobs: list[Job] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)


def chosen_names(text: str | None) -> list[str]:
    """Names in a comma-separated list, all of them where there is none. Exits with a sentence for an unknown one."""
    known = [contender.name for contender in CONTENDERS]
    if text is None:
        return known
    names = [name.strip() for name in text.split(",") if name.strip()]
    unknown = sorted(set(names) - set(known))
    if unknown or not names:
        raise SystemExit(f"--contenders {text}: {', '.join(unknown) or 'nothing'} is not among {', '.join(known)}.")
    return names


def plan_round(names: Sequence[str], interpreters: Mapping[str, str | None], models: Path, workload: Workload) -> Plan:
    """The children of one round: the machine first, then every contender that has what it needs."""
    plan = Plan()
    ours = interpreters[OURS]
    if ours is not None:
        machine = (ours, str(DRIVERS / "measure_machine.py"), "--threads", str(workload.threads))
        plan.jobs.append(Job(MACHINE, LARGE, machine))
    for contender in CONTENDERS:
        python = interpreters[contender.engine]
        obstacle = _obstacle(contender, names, python)
        for checkpoint, model in contender.models.items():
            path = models / model
            make = contender.make if checkpoint in (LARGE, TRAINED) else f"make_checkpoints.py OUT {_kind(model)}"
            why = obstacle or (None if path.exists() else f"{path.name} is not among the models: run {make}")
            if why is not None:
                plan.missing[f"{contender.name}/{checkpoint}"] = why
            elif python is not None:
                command = _command(contender, python, path, checkpoint, workload)
                plan.jobs.append(Job(contender.name, checkpoint, command))
    return plan


def _kind(model: str) -> str:
    """What make_checkpoints.py calls a folder or file that it makes."""
    return f"gguf-{model.removesuffix('.gguf').replace('.', '-')}" if model.endswith(".gguf") else model


def _obstacle(contender: Contender, names: Sequence[str], python: str | None) -> str | None:
    """Why a contender cannot run whatever the checkpoint, None where it can."""
    if contender.name not in names:
        return LEFT_OUT
    return None if python is not None else f"no environment given: --{contender.engine} PYTHON"


def _command(contender: Contender, python: str, model: Path, checkpoint: str, workload: Workload) -> tuple[str, ...]:
    return (
        python,
        str(contender.driver),
        str(model),
        *("--output-len", str(workload.decode_steps)),
        *("--runs", str(TOY_RUNS if checkpoint == TOY else workload.runs)),
        *("--threads", str(workload.threads)),
        *("--batch-sizes", ",".join(map(str, workload.batch_sizes))),
        *contender.options,
    )
