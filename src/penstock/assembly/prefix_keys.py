"""The keys of cached prefixes: what they depend on, and whether other processes have the same.

Each server has a secret of its own by default, so that no client can tell a key. Where processes share a secret, equal
keys mean equal keys and values: the namespace has all that these depend on beside the tokens.
"""

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path

from penstock import __version__
from penstock.assembly.disk import SECRET, disk_secret
from penstock.cache.chain import KeyFunction, keyed_hash, tag_of
from penstock.core.config import EngineConfig, RanksConfig
from penstock.core.errors import ConfigurationError
from penstock.core.handover import PREFIX_SECRET
from penstock.loading.checkpoint import Checkpoint
from penstock.loading.fingerprint import fingerprint
from penstock.quantization.rounding import ROUNDING

SHORTEST = 32
# Raise it where the same configuration gets other keys and values.
_VERSION = 1
_SECRET_BYTES = 64
# Of what the form of blocks is made, beside what keys are.
_FORM = b"form of release "


@dataclass(frozen=True, slots=True)
class PrefixKeys:
    """How keys are made.

    Attributes:
        namespace: what they depend on beside the tokens.
        key_of: a key from its parent's and its tokens.
        form: blocks of engines with the same can be handed over; empty where no secret is shared.
        notes: what users should know of it.
    """

    namespace: bytes
    key_of: KeyFunction
    form: str = ""
    notes: tuple[str, ...] = ()


def prefix_keys(config: EngineConfig, checkpoint: Checkpoint, computed_by: str) -> PrefixKeys:
    """The keys of an engine whose kernels are `computed_by`, since others give other bits.

    Raises ConfigurationError where the secret that is to be shared cannot be had, or is short.
    """
    secret, source = shared_secret(config.cache.prefix_secret_file)
    if secret is None and config.cache.store is not None:
        raise ConfigurationError(
            "--kv-store needs the secret that the servers share: give all of them --prefix-secret-file, or "
            f"{PREFIX_SECRET}."
        )
    if secret is None and config.cache.handover is not None:
        raise ConfigurationError(
            f"--role {config.cache.handover.role} needs the secret that the servers share: give all of them "
            f"--prefix-secret-file, or {PREFIX_SECRET}."
        )
    if secret is None and config.cache.disk is not None:
        secret, source = disk_secret(Path(config.cache.disk).expanduser()), config.cache.disk
    if secret is None:
        return PrefixKeys(b"", keyed_hash(os.urandom(_SECRET_BYTES)))
    model, folder = config.model, config.model.packed_cache
    weights = "dummy"
    if model.load_format != "dummy":
        kept = None if folder is None else Path(folder).expanduser()
        weights = fingerprint(checkpoint, kept, config.threads).hex()
    namespace, key_of = _digest({"weights": weights, **_of_slots(config, checkpoint, computed_by)}), keyed_hash(secret)
    form = key_of(namespace, _FORM + __version__.encode()).hex()
    note = f"Keys of prefixes are made with the secret of {source}: processes with it, and equal weights, share them."
    return PrefixKeys(namespace, key_of, form, (note,))


def tags_in(folder: Path, tenant: str, secret_file: str | None) -> frozenset[bytes]:
    """What stands for a tenant in a folder of --kv-disk, by its own secret, and by one that processes share.

    Raises ConfigurationError where neither is known.
    """
    shared, _ = shared_secret(secret_file)
    secrets = [] if shared is None else [shared]
    if (folder / SECRET).is_file():
        secrets.append(disk_secret(folder))
    if not secrets:
        raise ConfigurationError(
            f"What is whose in {folder} is known with the secret only that servers have shared; give it with "
            f"--prefix-secret-file or {PREFIX_SECRET}."
        )
    return frozenset(tag_of(tenant, keyed_hash(secret)) for secret in secrets)


def identity(config: EngineConfig, checkpoint: Checkpoint, computed_by: str) -> str:
    """What bits an engine gives follows from this, and from its weights, which take long to read."""
    return _digest({"release": __version__, **_depends(config, checkpoint, computed_by)}).hex()


def _of_slots(config: EngineConfig, checkpoint: Checkpoint, computed_by: str) -> dict[str, object]:
    """What keys depend on beside the weights.

    Blocks that are handed over have one form, however many ranks compute them. Their values may be other ones: a
    gateway has them handed over between layouts only where it is told that results may be unlike.
    """
    found = _depends(config, checkpoint, computed_by)
    if config.cache.handover is not None:
        found |= {"cache": repr(config.slots)}
        found.pop("ranks", None)
    return found


def _depends(config: EngineConfig, checkpoint: Checkpoint, computed_by: str) -> dict[str, object]:
    model, ranks = config.model, config.ranks
    return {
        "version": _VERSION,
        "config": checkpoint.config,
        "dtype": model.dtype,
        "quantization": [model.quantization, model.quantize_head, ROUNDING],
        "cache": repr(config.cache.spec),
        "computed by": computed_by,
        # Layers or contexts that are split otherwise have other sums, and ranks other heads.
        **({} if ranks is None or ranks.together == 1 else {"ranks": _layout(ranks)}),
    }


def _layout(ranks: RanksConfig) -> list[object]:
    return [ranks.split, ranks.experts, ranks.places, ranks.stripes]


def _digest(content: dict[str, object]) -> bytes:
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=repr).encode()).digest()


def shared_secret(file: str | None) -> tuple[bytes | None, str]:
    """The secret that processes share, and where it is from; None where each has its own.

    Raises ConfigurationError where the file cannot be read, the secret is short, or there are two.
    """
    variable = os.environ.get(PREFIX_SECRET)
    if file is None and variable is None:
        return None, ""
    if file is not None and variable is not None:
        raise ConfigurationError(f"--prefix-secret-file and {PREFIX_SECRET} are both given; give one of them.")
    if file is None:
        assert variable is not None
        given, source = variable.encode("utf-8", "surrogateescape"), PREFIX_SECRET
    else:
        try:
            given, source = Path(file).expanduser().read_bytes(), file
        except OSError as error:
            raise ConfigurationError(f"--prefix-secret-file {file} cannot be read: {error.strerror}.") from error
    if len(given.strip()) < SHORTEST:
        raise ConfigurationError(
            f"The secret of {source} has {len(given.strip())} bytes; it must have at least {SHORTEST}, which "
            "`openssl rand -hex 32` makes."
        )
    # A keyed BLAKE2b takes no longer one.
    return hashlib.blake2b(given.strip(), digest_size=_SECRET_BYTES).digest(), source
