"""What options say of a model and its devices, for plans and simulations."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from penstock.cli.plan_options import DeploymentOptions, RoleOptions
from penstock.configuration.sizes import parse_size
from penstock.core.errors import ConfigurationError
from penstock.loading.cache_folder import hardware_file
from penstock.loading.checkpoint import open_checkpoint
from penstock.loading.gguf import is_gguf
from penstock.loading.hub import resolve_model
from penstock.loading.json_file import read_json
from penstock.planning.calibration import Basis, MeasuredPoint, calibrated, prior_basis
from penstock.planning.deploying import check_split, deploy, replica_of
from penstock.planning.hardware import Machine, machine_of
from penstock.planning.latency import Deployment
from penstock.planning.own import OwnMachine, read_machine
from penstock.planning.ranks import basis_of_ranks, in_ranks

# What `--on` calls the machine that was measured here.
THIS = "this"


class Deployed(NamedTuple):
    """A model on the devices of a replica, how many of these a machine has, and what estimates stand on."""

    deployment: Deployment
    machine: Machine
    replicas: int
    basis: Basis


def deployed(model: str | None, options: DeploymentOptions, roles: RoleOptions) -> Deployed:
    """The deployment that options describe; replicas with roles have all devices together.

    Raises ConfigurationError and ModelFileError.
    """
    if options.on is None:
        raise ConfigurationError(
            "--on is missing: say on which devices, such as --on h100; `penstock plan --list` shows all."
        )
    own = own_machine(options.on)
    machine = machine_of(options.on) if own is None else Machine(own.device)
    machine = _with_memory(machine, options.memory)
    stages, groups, stripes = (
        options.pipeline_parallel_size,
        options.data_parallel_size,
        options.context_parallel_size,
    )
    if machine.device.kind == "cpu" and machine.count == 1:
        return _on_processor(model, options, machine, own)
    if stripes > 1:
        raise ConfigurationError(
            f"--context-parallel-size is of processes that share a processor, and {machine} are none; leave it out."
        )
    machine, split = replica_of(machine, _sharing(options, roles, machine), stages, groups)
    check_split(machine, split, stages)
    replicas = machine.replicas(split * stages)
    deployment = deploy(
        _config(model, options.model_config, options.dtype),
        machine,
        split,
        stages=stages,
        groups=groups,
        dtype=options.dtype,
        kv_cache_dtype=options.kv_cache_dtype,
    )
    return Deployed(deployment, machine, replicas, _basis(deployment, own, options.calibration))


def _sharing(options: DeploymentOptions, roles: RoleOptions, machine: Machine) -> int | None:
    """Over how many devices each layer is split; None: over all. Raises ConfigurationError.

    One device stands for all of its kind. Several are shared out among the replicas that have roles.
    """
    sharing, replicas = options.tensor_parallel_size, (roles.prefill_replicas or 0) + (roles.decode_replicas or 0)
    if machine.count == 1 or not replicas:
        return sharing
    if machine.count % replicas:
        raise ConfigurationError(
            f"{machine.count} devices cannot be shared out among {replicas} replicas with roles; give --on a multiple."
        )
    if sharing not in (None, machine.count // replicas):
        raise ConfigurationError(
            f"{replicas} replicas of {sharing} devices have {replicas * (sharing or 1)}, and --on says "
            f"{machine.count}; give --on that number, or leave --tensor-parallel-size out."
        )
    return machine.count // replicas


def _on_processor(model: str | None, options: DeploymentOptions, machine: Machine, own: OwnMachine | None) -> Deployed:
    """A model in one process of a processor, or in ranks that share it. Raises ConfigurationError."""
    split, stages = options.tensor_parallel_size or 1, options.pipeline_parallel_size
    stripes = options.context_parallel_size
    if options.data_parallel_size > 1:
        raise ConfigurationError("--data-parallel-size is of devices; on a processor, leave it out.")
    check_split(machine, 1)
    config = _config(model, options.model_config, options.dtype)
    deployment = deploy(config, machine, 1, dtype=options.dtype, kv_cache_dtype=options.kv_cache_dtype)
    basis = _basis(deployment, own, options.calibration)
    if split * stages * stripes == 1:
        return Deployed(deployment, machine, 1, basis)
    if options.calibration is not None:
        raise ConfigurationError("--calibration has runs of devices; leave it out, or the processes that share one.")
    measured = () if own is None else own.ranks
    deployment, costs = in_ranks(deployment, split=split, stages=stages, stripes=stripes, measured=measured)
    return Deployed(deployment, Machine(deployment.device, deployment.devices), 1, basis_of_ranks(basis, costs))


def _with_memory(machine: Machine, size: str | None) -> Machine:
    """A machine whose devices have as much memory, where that is not known of them. Raises ConfigurationError."""
    memory = parse_size(size, "--memory")
    if memory is None:
        return machine
    if machine.device.memory:
        raise ConfigurationError(f"{machine.device.name} has {machine.device.memory / 1e9:.0f} GB; leave --memory out.")
    return msgspec.structs.replace(machine, device=msgspec.structs.replace(machine.device, memory=float(memory)))


def own_machine(on: str) -> OwnMachine | None:
    """The machine that was measured, where `on` says "this" or names a file; None where it names devices.

    Raises ConfigurationError where the file cannot be read, or is none that `penstock calibrate` wrote.
    """
    if on != THIS and not on.endswith(".json"):
        return None
    file = hardware_file() if on == THIS else Path(on)
    try:
        return read_machine(file.read_bytes(), str(file))
    except FileNotFoundError:
        hint = "`penstock calibrate MODEL` measures this machine and writes it"
        raise ConfigurationError(f"--on {on}: there is no {file}; {hint}.") from None
    except OSError as error:
        raise ConfigurationError(f"--on {on}: {file} cannot be read: {error.strerror}.") from None


def _basis(deployment: Deployment, own: OwnMachine | None, calibration: Path | None) -> Basis:
    """What estimates stand on. Raises ConfigurationError where a file of measured runs cannot be used."""
    if calibration is None:
        return prior_basis(deployment) if own is None else own.basis(deployment)
    try:
        measured = msgspec.json.decode(calibration.read_bytes(), type=list[MeasuredPoint])
    except OSError as error:
        raise ConfigurationError(f"--calibration {calibration} cannot be read: {error.strerror}.") from None
    except msgspec.DecodeError as error:
        raise ConfigurationError(f"--calibration {calibration} is no list of measured runs in JSON: {error}.") from None
    return calibrated(deployment, measured)


def _config(model: str | None, file: Path | None, dtype: str | None) -> Mapping[str, Any]:
    if (model is None) == (file is None):
        raise ConfigurationError("Give either MODEL or --model-config FILE.")
    if file is not None:
        if not file.is_file():
            raise ConfigurationError(f"--model-config {file} is no file.")
        return read_json(file)
    assert model is not None
    path = resolve_model(model)
    if is_gguf(path) and dtype is None:
        raise ConfigurationError("Tensors of a GGUF file have formats of their own; say --dtype, such as q4_k_m.")
    if is_gguf(path):
        return open_checkpoint(path, weights=False).config
    # As it is in the file: it has the format of the weights.
    return read_json(path / "config.json")
