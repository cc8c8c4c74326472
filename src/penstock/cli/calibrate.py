"""`penstock calibrate`: measures this machine and steps of a model on it, for plans and simulations to stand on."""

import datetime
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console

from penstock.assembly.prepare import Prepared, prepare
from penstock.bench.steps import CASES, DECODES, Engine, StepCase, means, measure_steps, variation
from penstock.cli.files import check_writable
from penstock.configuration.options import EngineOptions
from penstock.configuration.ranks import Layout, check_alone, check_ranks
from penstock.core.ceilings import Ceilings
from penstock.core.config import EngineConfig
from penstock.core.errors import ConfigurationError
from penstock.core.plan import StepPlan, StepResult
from penstock.doctor.probe import read_processor
from penstock.engine.worker import BuiltEngine
from penstock.loading.cache_folder import hardware_file
from penstock.loading.gguf import is_gguf
from penstock.loading.json_file import read_json
from penstock.planning.deploying import deploy
from penstock.planning.formats import format_of
from penstock.planning.hardware import Device, Machine, device_of_ceilings
from penstock.planning.latency import Deployment, MeasuredStep
from penstock.planning.own import OwnMachine, calibrated_machine, read_machine
from penstock.planning.ranks import in_ranks, measured_costs
from penstock.runtime.machine import machine_facts
from penstock.runtime.threads import limit_spinning
from penstock.scheduler.build import build_scheduler

_ROUNDED = ("int8", "int4")
_CACHES = {"auto": "bfloat16", "int8": "int8", "fp8": "fp8", "int4": "int4"}


def run_calibrate(options: dict[str, Any], seconds: float, to: Path | None) -> None:
    """Measure, write the file, and say what was found. Raises StartupError."""
    if not seconds > 0:
        raise ConfigurationError(f"--seconds {seconds:g} is no time to measure for; give more than 0.")
    if options["speculative"] not in ("auto", "off"):
        raise ConfigurationError("Calibrations are of steps without drafts; leave --speculative out.")
    if options.get("kv_policy") is not None:
        raise ConfigurationError("Calibrations are of whole contexts; leave --kv-policy out.")
    if options["device"] != "cpu":
        raise ConfigurationError("Processors alone are calibrated; leave --device out.")
    if to is not None and to.suffix != ".json":
        raise ConfigurationError(f"--to {to} has to end in .json, by which --on knows a file.")
    file = to or hardware_file()
    file.parent.mkdir(parents=True, exist_ok=True)
    check_writable(file, "--to")
    console = Console(highlight=False, markup=False, stderr=True)
    given = EngineOptions.of(**{**options, "speculative": "off"})
    if (layout := check_ranks(given)).size > 1:
        _add_ranks(given, layout, seconds, file)
        return
    check_alone(given, "What `penstock calibrate` measures first")
    prepared = prepare(given, api_beside=True)
    _check_formats(prepared)
    device, engine = _measured_device(prepared.config)
    deployment = deployment_here(prepared, device, given.cache.kv_cache_dtype)
    found = _measured_steps(engine, prepared.config, seconds, console)
    made = datetime.datetime.now(datetime.UTC).date().isoformat()
    kept = deployment.weights.kind, deployment.cache.kind
    name = prepared.served_names()[0]
    machine = calibrated_machine(deployment, means(found), made, name, kept, variation(found))
    machine = msgspec.structs.replace(machine, threads=prepared.config.threads)
    # What was measured is kept, whatever becomes of the server.
    _write(machine, file)
    console.print("a server and its clients, beside the steps of haiku")
    # It imports torch, which takes a second.
    from penstock.cli.answering import measure_answering

    machine = msgspec.structs.replace(machine, answering=measure_answering(given.device.threads))
    _write(machine, file)
    _print(machine, file)


def _add_ranks(given: EngineOptions, layout: Layout, seconds: float, file: Path) -> None:
    """Measure what several processes take, and write it beside what one with all threads does."""
    try:
        machine = read_machine(file.read_bytes(), str(file))
    except OSError as error:
        raise ConfigurationError(
            f"{layout.asked} is measured beside one process: there is no {file} ({error.strerror}); run `penstock "
            "calibrate` without it before."
        ) from None
    if given.device.machines > 1:
        raise ConfigurationError("Processes of one machine are calibrated; leave --machines out.")
    console = Console(highlight=False, markup=False, stderr=True)
    prepared = prepare(given, api_beside=True)
    _check_formats(prepared)
    whole = deployment_here(prepared, machine.device, given.cache.kv_cache_dtype)
    name, kept = prepared.served_names()[0], (whole.weights.kind, whole.cache.kind)
    if (name, kept) != (machine.model, machine.kept):
        raise ConfigurationError(
            f"{file} has steps of {machine.model} ({machine.kept[0]}) in one process, and ranks are measured beside "
            "these: give the same model in the same format."
        )
    if machine.threads != prepared.config.threads:
        raise ConfigurationError(
            f"{file} has steps with {machine.threads or 'an unknown number of'} threads, and ranks are measured beside "
            f"these, with {prepared.config.threads}: give the same --threads, or calibrate one process again."
        )
    ranks, costs = in_ranks(whole, split=layout.split, stages=layout.stages, stripes=layout.stripes)
    _, engine = _measured_device(prepared.config)
    found = _measured_steps(engine, prepared.config, seconds, console)
    made = datetime.datetime.now(datetime.UTC).date().isoformat()
    said = f"{len(means(found))} steps of these {layout.size} ranks on this machine, measured on {made}"
    costs = measured_costs(ranks, costs, machine.efficiency, means(found), said)
    others = tuple(each for each in machine.ranks if each.of not in (None, costs.of))
    _write(msgspec.structs.replace(machine, ranks=(*others, costs)), file)
    low, high = costs.interval
    Console(highlight=False, markup=False).print(
        f"{layout.size} ranks compute for {1 + costs.waits:.2f} times as long as threads; nine tenths of steps were "
        f"between {low:.0%} and {high:.0%} of that. Written to {file}."
    )


def _measured_steps(engine: BuiltEngine, config: EngineConfig, seconds: float, console: Console) -> list[MeasuredStep]:
    """Steps of every case, which are told as they are measured."""
    found: list[MeasuredStep] = []
    for each in engines_in(engine, config):
        for case, steps in measure_steps(each, cases_of(config), seconds / 2):
            found += steps
            console.print(f"{_told(case)}: {_in_words(steps)}")
    return found


def cases_of(config: EngineConfig) -> tuple[StepCase, ...]:
    """What is measured, as far as contexts are long enough."""
    return tuple(case for case in CASES if case.prompt + DECODES + 2 <= config.scheduler.max_model_len)


def _write(machine: OwnMachine, file: Path) -> None:
    try:
        file.write_bytes(msgspec.json.format(msgspec.json.encode(machine), indent=1))
    except OSError as error:
        raise ConfigurationError(f"{file} cannot be written: {error.strerror}; say another with --to.") from None


def _check_formats(prepared: Prepared) -> None:
    """Raise ConfigurationError where nothing is known of what weights take."""
    if is_gguf(Path(prepared.config.model.path)):
        raise ConfigurationError("Tensors of a GGUF file have formats of their own; calibrate on a directory.")
    if prepared.config.model.quantization == "own":
        raise ConfigurationError(
            "The model's files keep integers of their own; calibrate on one without, maybe with --quantization."
        )


def deployment_here(prepared: Prepared, device: Device, kv_cache_dtype: str) -> Deployment:
    """The model of an engine on this machine, in the formats that it computes with."""
    model = prepared.config.model
    config = read_json(Path(model.path) / "config.json")
    kept, head = (each if each in _ROUNDED else model.dtype for each in (model.quantization, model.quantize_head))
    deployment = deploy(config, Machine(device), 1, dtype=kept, kv_cache_dtype=_CACHES[kv_cache_dtype])
    return msgspec.structs.replace(deployment, head=format_of(head))


def _measured_device(config: EngineConfig) -> tuple[Device, BuiltEngine]:
    """This machine's limits, and the engine, which measured them."""
    limit_spinning()
    # It imports torch, which takes a second.
    from penstock.assembly.build import build_engine

    memory = machine_facts(api_beside=False).available_memory
    built = build_engine(config, lambda _done, _total: None)
    if built.ceilings is None:
        raise ConfigurationError("This machine's limits cannot be measured: the native kernels do not run here.")
    return this_device(built.ceilings, memory), built


def this_device(ceilings: Ceilings, memory: float) -> Device:
    """This machine as plans know devices."""
    processor = read_processor()
    return device_of_ceilings(ceilings, f"{processor.name}, {processor.usable} cores", memory)


def engine_in(built: BuiltEngine) -> Engine:
    """What is measured of an engine in this process."""
    core = built.core

    def execute(plan: StepPlan) -> StepResult:
        return core.executor.execute(plan).result()

    return Engine(core.scheduler, execute, built.vocab_size)


def engines_in(built: BuiltEngine, config: EngineConfig) -> tuple[Engine, Engine]:
    """With a server's scheduler, which cuts prompts so that steps are short, and with one that does not."""
    whole = msgspec.structs.replace(config.scheduler, target_itl=None, bound_batch=False)
    first, second = (
        engine_in(built)._replace(scheduler=build_scheduler(limits, config.cache))
        for limits in (config.scheduler, whole)
    )
    return first, second


def _in_words(steps: Sequence[MeasuredStep]) -> str:
    """Of a case, the steps with prompts together, and one that decodes."""
    kinds = means(steps)
    prompts = [step.seconds for step in kinds if step.rows.chunks]
    decodes = [step.seconds for step in kinds if not step.rows.chunks]
    several = f"{len(prompts)} steps" if len(prompts) > 1 else "a step"
    alone = f"; a step of decodes, {decodes[-1] * 1e3:.1f} ms" if decodes else ""
    return f"{several} with prompts, {sum(prompts) * 1e3:.1f} ms{alone}"


def _told(case: StepCase) -> str:
    several = f"{case.rows} prompts" if case.rows > 1 else "a prompt"
    return f"{several} of {case.prompt} tokens" + (f" beside {case.beside} that decode" if case.beside else "")


def _print(machine: OwnMachine, file: Path) -> None:
    console, device = Console(highlight=False, markup=False), machine.device
    rates = ", ".join(f"{name} {rate / 1e9:,.0f}" for name, rate in device.rates.items())
    console.print(f"{device.name}: reads {device.bandwidth / 1e9:.1f} GB/s; computes GOP/s: {rates}.")
    low, high = machine.interval
    console.print(
        f"{len(machine.steps)} steps of {machine.model}; each third was estimated from the others, and nine tenths "
        f"were between {low:.0%} and {high:.0%} of their estimates."
    )
    answering = machine.answering
    if answering is not None:
        console.print(
            f"A server and clients that share this machine with it take {answering.step_seconds * 1e3:.2f} ms of a "
            f"step and {answering.row_seconds * 1e3:.2f} ms for each of its rows, "
            f"{answering.request_seconds * 1e3:.1f} ms of others' steps for a request, and "
            f"{answering.first_seconds * 1e3:.1f} ms more of its first token. Requests that are sent together come "
            f"{answering.apart_seconds * 1e3:.1f} ms apart."
        )
    console.print(f"Written to {file}; plans take it as --on {'this' if file == hardware_file() else file}.")
