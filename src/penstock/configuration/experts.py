"""Where groups of processes have which experts: what has to be said for that, and what is told of it."""

from penstock.configuration.options import EngineOptions
from penstock.configuration.reasons import Reasons
from penstock.core.errors import ConfigurationError
from penstock.core.shares import ExpertPlaces


def check_experts(options: EngineOptions, groups: int, stages: int) -> tuple[int, str | None]:
    """Room for copies in each of `groups` of ranks, and the file that has counts of choices, or is to have them.

    `stages` is how many stages of layers there are.

    Raises ConfigurationError where there is no use for them, or none can be made.
    """
    room, file = options.device.expert_copies, options.device.expert_counts
    if isinstance(room, bool) or not isinstance(room, int) or room < 0:
        raise ConfigurationError(f"--expert-copies is {room!r}; it must be 0 or more.")
    for option, given in (("--expert-copies", room), ("--expert-counts", file)):
        if given and groups == 1:
            raise ConfigurationError(
                f"{option} is for groups of processes that have experts of their own; give --expert-parallel-size, too."
            )
    if file and stages > 1:
        raise ConfigurationError(
            "--expert-counts and --pipeline-parallel-size do not go together: the first process counts what is chosen, "
            "and it has the last layers only; leave one of them out."
        )
    if room and not file:
        raise ConfigurationError(
            "--expert-copies is of the experts that are chosen most; say with --expert-counts FILE where counts of "
            "that are, or are to be written."
        )
    return room, file


def note_experts(options: EngineOptions, places: tuple[ExpertPlaces, ...], out: Reasons) -> None:
    """Say by what they are placed, and how many copies there may be."""
    room, file = options.device.expert_copies, options.device.expert_counts
    if places:
        out.limit("expert copies", room, "as asked: room of each group for experts that others have, too")
        out.note("expert counts", str(file), "as asked: it says where experts are; another file may give other bits")
    elif file is not None:
        out.limit("expert copies", 0, "nothing has been counted yet")
        out.note("expert counts", file, "as asked: choices are counted, and it is written; the next start places by it")
    else:
        out.note("expert copies", 0, "--expert-copies makes some where groups of processes have whole experts")
        out.note("expert counts", "off", "experts stand in their order; --expert-counts places them by what is chosen")
