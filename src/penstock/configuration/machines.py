"""On which machines the stages of a model are."""

from penstock.configuration.listening import host_and_port_in
from penstock.configuration.options import EngineOptions
from penstock.configuration.reasons import Reasons
from penstock.core.config import MachinesConfig
from penstock.core.errors import ConfigurationError

DEFAULT_ADDRESS = "127.0.0.1:7400"
# Where only processes of the same machine can call.
_ALONE = ("127.0.0.1", "::1", "localhost")


def host_and_port(address: str) -> tuple[str, int]:
    """What HOST:PORT says, which others call. Raises ConfigurationError for what is none."""
    found = host_and_port_in(address)
    if found is None or not found[1]:
        raise ConfigurationError(f"{address!r} is no address; it has to be HOST:PORT, such as 10.0.0.5:7400.")
    return found


def resolve_machines(options: EngineOptions, stages: int) -> MachinesConfig | None:
    """The machines that were asked for; None: all is on one. Raises ConfigurationError where there cannot be these."""
    device = options.device
    count = device.machines
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise ConfigurationError(f"--machines is {count!r}; it must be a number from 1 on.")
    if count == 1:
        for option in ("machines_at", "machines_secret_file"):
            if getattr(device, option) is not None:
                name = option.replace("_", "-")
                raise ConfigurationError(
                    f"--{name} is for --machines of 2 and more; give their number, or leave it out."
                )
        return None
    if stages % count:
        raise ConfigurationError(
            f"--machines is {count}, which does not divide the {stages} stages of --pipeline-parallel-size, and "
            f"each machine has whole stages; take --pipeline-parallel-size {count}, or a multiple of it."
        )
    host, port = host_and_port(device.machines_at or DEFAULT_ADDRESS)
    if device.machines_secret_file is None and host not in _ALONE:
        raise ConfigurationError(
            f"--machines-at {device.machines_at} can be reached from other machines, which have to show that they know "
            "a secret; give all of them --machines-secret-file."
        )
    return MachinesConfig(count, host, port, device.machines_secret_file)


def note_machines(machines: MachinesConfig | None, out: Reasons) -> None:
    """Say on which machines processes are, and how these find each other."""
    if machines is None:
        out.note("machines", 1, "all processes are on this one")
        out.note("machines at", "none", "there are no others to listen for")
        out.note("machines secret file", "none", "there are no others to share it with")
        return
    address = f"{machines.host}:{machines.port}"
    out.limit("machines", machines.count, f"as asked: the others run penstock join {address}")
    out.note("machines at", address, "where the others call this one")
    file = machines.secret_file
    out.note("machines secret file", file or "none", "as asked" if file else "only this machine can call that address")
