"""Which prompts have their prefixes in a folder, how far, and why no further, as a server would find them."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from penstock.assembly.backend import backend_of
from penstock.assembly.disk import LAYOUT, SECRET, Part, check_folder, needing_extra, parts_in, slots_of
from penstock.assembly.kv_store import OF_PART
from penstock.assembly.prefix_keys import prefix_keys, shared_secret
from penstock.assembly.prepare import Prepared
from penstock.assembly.tiers import OF_VALUES
from penstock.cache.keeps import Slot
from penstock.cache.manager import KVCache
from penstock.cache.shelf import Shelf
from penstock.core.errors import ConfigurationError
from penstock.core.kv import KVSpec
from penstock.runtime.slot_names import ABOUT, path_of

Absent = Literal["short", "absent", "evicted", "damaged"]
"""Why no more of a prompt is there.

short: what is left is no whole block, or its last token, which is always computed. absent: it was never written, or all
that came behind has been evicted since. evicted: what comes behind is there, and a block before it is not. damaged: a
file is not as it was written.
"""

# Files of a part that are looked at to see whether the secret is another one.
_SAMPLES = 8


class PromptKept(msgspec.Struct, frozen=True):
    """What a folder has of one prompt.

    Attributes:
        line: of the file of prompts.
        tokens: of the prompt; `there`: those whose keys and values a server would find.
        why: why not more.
        damaged: files that are not as they were written.
    """

    line: int
    tokens: int
    there: int
    why: Absent
    damaged: int = 0


class KeptPrefixes:
    """The part of a folder that a server with a configuration would use.

    Attributes:
        own: its folder.
    """

    def __init__(
        self, own: Path, spec: KVSpec, cache: KVCache, opens: Callable[[Slot, bytes, bytearray], bool]
    ) -> None:
        self.own = own
        self._spec, self._cache, self._opens = spec, cache, opens
        self._names = {name for name, _ in slots_of(own)}
        self._checked: dict[Slot, bool] = {}

    def check_secret(self) -> None:
        """Raise ConfigurationError where its files were written with another secret."""
        samples = sorted(self._names)[:_SAMPLES]
        if samples and not any(map(self._is_whole, samples)):
            raise ConfigurationError(
                f"{self.own} was written with another secret, or by another version, or all of it is damaged; give the "
                f"server's --prefix-secret-file, or its file {SECRET}."
            )

    def look(self, line: int, tokens: list[int]) -> tuple[PromptKept, list[Slot]]:
        """What is there of a prompt, and the slots that a server would read for it."""
        size, damaged = self._spec.block_size, 0
        while True:
            blocks = self._cache.open(0, "")
            self._cache.longest_hit(blocks, tokens)
            reach = self._cache.reach(blocks, 0, len(tokens), len(tokens), self._cache.shelves)
            needed = [
                (group, blocks.chain.kept_key(missing.depth)) for group, missing in self._cache.attach(blocks, reach)
            ]
            lost = [slot for slot in needed if not self._is_whole(slot)]
            if not lost:
                break
            # A server would compute what stands behind.
            damaged += len(lost)
            self._names.difference_update(lost)
            for shelf in self._cache.shelves.ordered:
                for slot in lost:
                    shelf.lose(slot)
        whole = (len(tokens) - 1) // size
        why: Absent = "short" if reach >= whole else "damaged" if damaged else "absent"
        if why == "absent" and any((0, blocks.chain.kept_key(depth)) in self._names for depth in range(reach, whole)):
            why = "evicted"
        return PromptKept(line, len(tokens), reach * size, why, damaged), needed

    def _is_whole(self, slot: Slot) -> bool:
        if slot not in self._checked:
            size = self._spec.slot_bytes(slot[0])
            try:
                self._checked[slot] = self._opens(slot, path_of(self.own, slot).read_bytes(), bytearray(size))
            except OSError:
                self._checked[slot] = False
        return self._checked[slot]


def kept_prefixes(prepared: Prepared, folder: Path) -> KeptPrefixes:
    """What a folder of --kv-disk or --kv-store has for a server with this configuration. Nothing is changed there.

    Raises ConfigurationError where it has nothing for it, and says what it has.
    """
    check_folder(folder)
    config = prepared.config
    if shared_secret(config.cache.prefix_secret_file)[0] is None and not (folder / SECRET).is_file():
        raise ConfigurationError(
            f"{folder} has no file {SECRET}, so that its files cannot be read; give the server's --prefix-secret-file."
        )
    with needing_extra("penstock cache", "kv-disk"):
        from penstock.runtime.sealing import Sealing
    keys = prefix_keys(config, prepared.checkpoint, backend_of(config).identity)
    names = keys.namespace.hex()[:32], keys.key_of(keys.namespace, OF_PART).hex()
    own = next((own for name in names if ((own := folder / f"{LAYOUT}-{name}") / ABOUT).is_file()), None)
    if own is None:
        raise ConfigurationError(_why_not(folder, parts_in(folder), prepared))
    spec, sealing = config.cache.spec, Sealing(keys.key_of(keys.namespace, OF_VALUES))
    cache = KVCache(spec, 1, namespace=keys.namespace, key_of=keys.key_of)
    cache.put_on([Shelf("disk", cache.transfers, (name for name, _ in slots_of(own)), 0)])
    found = KeptPrefixes(own, spec, cache, sealing.open)
    found.check_secret()
    return found


def _why_not(folder: Path, parts: Sequence[Part], prepared: Prepared) -> str:
    """Why a folder has nothing for a model, and what it has."""
    model = prepared.config.model
    if not parts:
        return f"{folder} has no prefixes yet; `penstock cache warm` computes them, and so does the server."
    same = [part for part in parts if part.about.model == model.path]
    if not same:
        return f"{folder} has nothing of {model.path}; it has {_listed(part.about.model for part in parts)}."
    forms = [part.about for part in same]
    if (model.dtype, model.quantization) not in [(form.dtype, form.quantization) for form in forms]:
        wrote = _listed(f"--dtype {form.dtype} --quantization {form.quantization}" for form in forms)
        return (
            f"{folder} has this model in another form than --dtype {model.dtype} --quantization {model.quantization}; "
            f"give the options that it was written with: {wrote}."
        )
    return (
        f"{folder} has this model, and was written with other weights, another --kv-cache-dtype, other kernels, or by "
        "another release of Penstock; give the options of the server that wrote it, or compute its prompts with "
        "`penstock cache warm`."
    )


def _listed(names: Iterator[str]) -> str:
    return ", ".join(dict.fromkeys(names))
