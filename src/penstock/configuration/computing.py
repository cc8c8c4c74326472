"""What is noted of how steps are computed: in which order sums are, and whether anything is computed at all."""

from penstock.configuration.facts import MachineFacts
from penstock.configuration.options import DeviceOptions
from penstock.configuration.reasons import Note
from penstock.core.devices import Gpu
from penstock.core.errors import ConfigurationError


def note_computing(device: DeviceOptions, gpu: Gpu | None, machine: MachineFacts, note: Note) -> None:
    """Note both. Raises ConfigurationError where the options ask for what is not possible."""
    _note_order_of_sums(device.deterministic, gpu, machine, note)
    _note_simulated(device, note)


def _note_simulated(device: DeviceOptions, note: Note) -> None:
    if device.simulate is None:
        if device.simulate_output_len != DeviceOptions().simulate_output_len:
            raise ConfigurationError("--simulate-output-len is of no use without --simulate.")
        note("simulate", "none", "what is served is computed")
        note("simulate output len", "none", "answers end by themselves")
        return
    note("simulate", device.simulate, "as asked: nothing is computed, and tokens are made up")
    why = "as asked, or by default: tokens of an answer, in the mean; they end at random"
    note("simulate output len", device.simulate_output_len, why)


def _note_order_of_sums(deterministic: bool, gpu: Gpu | None, machine: MachineFacts, note: Note) -> None:
    if deterministic and gpu is None and not machine.exact:
        raise ConfigurationError(
            "--deterministic is not possible here: without the native kernels, what torch computes depends on the "
            "batch."
        )
    why = "on a GPU sums have the order that is fastest for a batch; --deterministic gives them one order"
    if deterministic:
        why = "as asked: sums have one order, whatever is in a batch"
    elif gpu is None:
        why = "of GPUs alone; the CPU's kernels always give a row the same bits"
        if not machine.exact:
            why = "of GPUs alone; without the native kernels bits depend on the batch"
    note("deterministic", deterministic, why)
