"""URLs of stores for KV blocks that several machines share: `--kv-store`."""

import re
from collections.abc import Callable, Iterable
from types import MappingProxyType
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from penstock.configuration.sizes import parse_size
from penstock.core.config import MooncakeAccess, SharedStore
from penstock.core.errors import ConfigurationError

OPTION = "--kv-store"
# The schemes of Valkey's and Redis' URLs, and what their client calls them.
VALKEY_SCHEMES = MappingProxyType(
    {"redis": "redis", "rediss": "rediss", "valkey": "redis", "valkeys": "rediss", "unix": "unix"}
)
_SCHEMES = ("file", *VALKEY_SCHEMES, "s3", "mooncake")
# Of a folder, where nothing else is asked for.
FOLDER_BYTES = 100 << 30
# Those of Mooncake's master, where it is not told otherwise.
_MASTER_PORT, _METRICS_PORT = 50051, 9003
_NO_METADATA_SERVER = "P2PHANDSHAKE"
_METADATA_SERVERS = ("http://", "https://", "etcd://", "redis://")


def resolve_store(
    url: str | None, slot_bytes: int, why_not: str | None, note: Callable[[str, object, str], None]
) -> SharedStore | None:
    """The store of a URL.

    `slot_bytes` is what a block of tokens takes, `why_not` a reason that forbids a store. Raises ConfigurationError.
    """
    if url is None:
        note("kv store", "none", "prefixes are not shared with other machines")
        return None
    store = parse_store(url)
    if why_not is not None:
        raise ConfigurationError(f"{OPTION} {store.shown} is of no use: {why_not}.")
    if store.kind == "folder" and store.most_bytes < slot_bytes:
        raise ConfigurationError(
            f"{OPTION} {store.shown} may take {store.most_bytes} bytes, and one block of this model takes "
            f"{slot_bytes}; give it more."
        )
    note("kv store", store.shown, "as asked: servers with the same weights and secret share their prefixes there")
    return store


def parse_store(url: str) -> SharedStore:
    """What a URL says. Raises ConfigurationError."""
    try:
        parts = urlsplit(url)
        given = dict(parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query)))
    except ValueError as error:
        raise ConfigurationError(f"{OPTION} {without_secret(url)!r} is no URL: {error}.") from None
    if parts.scheme not in _SCHEMES or not url.startswith(f"{parts.scheme}://"):
        raise ConfigurationError(
            f"{OPTION} must be a URL such as file:///mnt/share/kv, redis://10.0.0.9:6379/0, s3://bucket/prefix or "
            f"mooncake://10.0.0.9:50051; it "
            f"begins with one of {', '.join(f'{scheme}://' for scheme in _SCHEMES)}."
        )
    shown = without_secret(url)
    if parts.scheme == "file":
        return _folder(shown, parts.netloc, unquote(parts.path), given)
    if parts.scheme == "s3":
        _known(shown, given, ("endpoint", "region"))
        if not parts.netloc:
            raise ConfigurationError(f"{OPTION} {shown} names no bucket; write s3://BUCKET/PREFIX.")
        endpoint = given.get("endpoint")
        if endpoint is not None and not re.match(r"https?://[^/]", endpoint):
            raise ConfigurationError(f"{OPTION} {shown}: the endpoint must be a URL of http:// or https://.")
        prefix = unquote(parts.path).strip("/")
        return SharedStore("s3", parts.netloc, shown, prefix=prefix, endpoint=endpoint, region=given.get("region"))
    if parts.scheme == "mooncake":
        return _mooncake(shown, parts, given)
    if "size" in given:
        raise ConfigurationError(
            f"{OPTION} {shown}: the server has a bound of its own (maxmemory); leave size out of the URL."
        )
    if not (parts.netloc or parts.path.strip("/")):
        raise ConfigurationError(f"{OPTION} {shown} names no server; write {parts.scheme}://HOST:PORT/NUMBER.")
    return SharedStore("valkey", VALKEY_SCHEMES[parts.scheme] + url[len(parts.scheme) :], shown)


def _folder(shown: str, host: str, path: str, given: dict[str, str]) -> SharedStore:
    _known(shown, given, ("size",))
    if host not in ("", "localhost") or not path.strip("/"):
        raise ConfigurationError(f"{OPTION} {shown} names no folder; write file:///FOLDER, with three slashes.")
    size = parse_size(given.get("size"), f"{OPTION}: size")
    if size == 0:
        raise ConfigurationError(f"{OPTION} {shown}: the size must be at least 1 byte.")
    return SharedStore("folder", path, shown, most_bytes=FOLDER_BYTES if size is None else size)


def _mooncake(shown: str, parts: SplitResult, given: dict[str, str]) -> SharedStore:
    _known(shown, given, ("metadata", "protocol", "devices", "segment", "metrics_port"))
    try:
        port = _MASTER_PORT if parts.port is None else parts.port
    except ValueError as error:
        raise ConfigurationError(f"{OPTION} {shown} is no URL: {error}.") from None
    if not re.fullmatch(r"[\w.-]+(:\d+)?", parts.netloc) or parts.path.strip("/"):
        raise ConfigurationError(f"{OPTION} {shown} must name Mooncake's master alone; write mooncake://HOST:PORT.")
    metadata, protocol = given.get("metadata", _NO_METADATA_SERVER), given.get("protocol", "tcp")
    if metadata != _NO_METADATA_SERVER and not metadata.startswith(_METADATA_SERVERS):
        raise ConfigurationError(
            f"{OPTION} {shown}: metadata must be {_NO_METADATA_SERVER}, or a URL that begins with one of "
            f"{', '.join(_METADATA_SERVERS)}."
        )
    if protocol not in ("tcp", "rdma"):
        raise ConfigurationError(f"{OPTION} {shown}: the protocol must be tcp or rdma.")
    if "devices" in given and protocol != "rdma":
        raise ConfigurationError(f"{OPTION} {shown}: devices are those of protocol=rdma; leave them out or add it.")
    metrics_port = given.get("metrics_port", str(_METRICS_PORT))
    if not (metrics_port.isascii() and metrics_port.isdecimal() and 0 < int(metrics_port[:6]) < 1 << 16):
        raise ConfigurationError(f"{OPTION} {shown}: metrics_port must be a number from 1 to 65535.")
    segment = parse_size(given.get("segment"), f"{OPTION}: segment") or 0
    access = MooncakeAccess(int(metrics_port), metadata, protocol, given.get("devices", ""), segment)
    return SharedStore("mooncake", f"{parts.hostname}:{port}", shown, mooncake=access)


def _known(shown: str, given: Iterable[str], known: tuple[str, ...]) -> None:
    for name in given:
        if name not in known:
            listed = " and ".join(filter(None, (", ".join(known[:-1]), known[-1])))
            raise ConfigurationError(f"{OPTION} {shown} has {name!r}; such a URL can have {listed}.")


def without_secret(url: str) -> str:
    """A URL without its password, as it may be shown."""
    url = re.sub(r"(://[^/?#@]*?):[^/?#@]*@", r"\1:***@", url)
    return re.sub(r"([?&]password=)[^&#]*", r"\1***", url)
