"""The file that says how often a model's experts are chosen: written where there is none, and then left as it is.

So every start with the same file has the same experts in the same places, and gives the same bits.
"""

import atexit
import logging
import threading
import time
from pathlib import Path
from typing import NoReturn

import msgspec

from penstock.core.errors import ConfigurationError
from penstock.core.shares import ExpertPlaces, TensorRank, shares
from penstock.models.declaration import ModelDeclaration
from penstock.parallel.choices import Choices
from penstock.planning.expert_places import place_experts

WRITE_SECONDS = 60.0
logger = logging.getLogger("penstock.engine")


class ExpertCounts(msgspec.Struct, frozen=True):
    """What the file has.

    Attributes:
        counts: by the name of a layer's experts, how often each was chosen.
    """

    counts: dict[str, list[int]]
    version: int = 1


def places_by(path: Path, declaration: ModelDeclaration, first: TensorRank, room: int) -> tuple[ExpertPlaces, ...]:
    """Where experts are by what the file says; nothing where there is none yet.

    `first` is the first rank; each group may have up to `room` experts more than its share. Raises ConfigurationError
    where the file is no such file, or of another model.
    """
    try:
        found = msgspec.json.decode(path.read_bytes(), type=ExpertCounts)
    except FileNotFoundError:
        return ()
    except (OSError, msgspec.DecodeError) as error:
        raise ConfigurationError(f"--expert-counts {path} cannot be read: {error}.") from error
    layers = {mixture.name: mixture.routing.experts for mixture in declaration.mixtures}
    if found.version != 1 or {name: len(counts) for name, counts in found.counts.items()} != layers:
        raise ConfigurationError(f"--expert-counts {path} is of another model; name a file for each model.")
    sizes = {name: [share.count for share in shares(count, first.experts)] for name, count in layers.items()}
    return tuple(ExpertPlaces(name, place_experts(counts, sizes[name], room)) for name, counts in found.counts.items())


def copied_parameters(declaration: ModelDeclaration, places: tuple[ExpertPlaces, ...]) -> int:
    """How many numbers copies have."""
    mixtures = {mixture.name: mixture for mixture in declaration.mixtures}
    copies = {layer.layer: layer.copies(mixtures[layer.layer].routing.experts) for layer in places}
    return sum(mixtures[name].parameters_of_one * count for name, count in copies.items())


class Keeper:
    """Writes the file while a model is served, and when the process ends in order."""

    def __init__(self, path: Path, choices: Choices, declaration: ModelDeclaration) -> None:
        self._path, self._choices = path, choices
        self._names = {mixture.gate_up.ref.name: mixture.name for mixture in declaration.mixtures}
        atexit.register(self.write)
        threading.Thread(target=self._again_and_again, daemon=True).start()

    def write(self) -> bool:
        """Write what has been counted so far; whether that could be done."""
        counts = {self._names[layer]: found for layer, found in self._choices.by_layer().items()}
        if not any(map(any, counts.values())):
            return True
        half = self._path.with_name(self._path.name + ".part")
        try:
            half.write_bytes(msgspec.json.encode(ExpertCounts(counts)))
            half.replace(self._path)
        except OSError as error:
            logger.error("--expert-counts %s cannot be written: %s.", self._path, error)
            return False
        return True

    def _again_and_again(self) -> NoReturn:
        while True:
            time.sleep(WRITE_SECONDS)
            self.write()
