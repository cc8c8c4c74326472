"""A model's name → its directory: given as one, cached from the Hugging Face hub, or downloaded."""

import socket
from pathlib import Path
from typing import TypeGuard

from penstock.core.errors import ModelFileError
from penstock.loading.checkpoint import CONFIG, INDEX, SINGLE_FILE, read_json

# Nothing else is read: no pickled weights, no code.
_PATTERNS = ["*.json", "*.safetensors", "*.jinja", "tokenizer.model"]
# The same weights once more, in their authors' own layout.
_NEVER_READ = ["consolidated*.safetensors", "*/*"]
_TIMEOUT_SECONDS = 5.0
_ELSEWHERE = "pass the path of a directory with config.json, safetensors files and tokenizer.json"


def resolve_model(name: str) -> Path:
    """The directory of `name`: itself where it is one, else the hub's snapshot, from the cache where that is complete.

    Raises ModelFileError where there is no such model, or it is not cached and there is no network; the environment
    variable HF_HUB_OFFLINE is honoured.
    """
    path = Path(name).expanduser()
    if path.is_dir():
        return path
    if path.exists():
        raise ModelFileError(f"{name} is a file; {_ELSEWHERE}.")
    if not _looks_like_hub_name(name):
        raise ModelFileError(f"The directory {name} does not exist; {_ELSEWHERE}, or a hub name such as owner/model.")
    return _snapshot(name)


def _looks_like_hub_name(name: str) -> bool:
    parts = name.split("/")
    return len(parts) == 2 and all(part and not part.startswith((".", "~", "-")) for part in parts)


def _snapshot(name: str) -> Path:
    # The hub's client takes a while to import and most models are directories.
    from huggingface_hub import HfApi
    from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, HFValidationError, RepositoryNotFoundError

    # The client has changed its HTTP library more than once; its own error is always derived from that library's.
    connection_errors: tuple[type[BaseException], ...] = (OSError, *HfHubHTTPError.__bases__)
    try:
        # Unlike a download, this is not retried for half a minute where there is no network.
        HfApi().model_info(name, timeout=_TIMEOUT_SECONDS)
        return _download(name, local_files_only=False)
    except GatedRepoError:
        reason = f"{name} is gated on the hub; accept its licence there and log in with `hf auth login`"
    except RepositoryNotFoundError:
        reason = f"The hub has no model {name}, or it is private"
    except HFValidationError:
        reason = f"{name} is neither a directory nor a valid hub name"
    except connection_errors as error:
        if _is_local(error):
            raise ModelFileError(
                f"{name} cannot be stored in the hub's cache ({error.strerror}); make room there, or set HF_HOME to a "
                "directory that can be written."
            ) from None
        return _cached(name, f"the hub cannot be reached ({type(error).__name__})")
    raise ModelFileError(f"{reason}; {_ELSEWHERE}.")


def _is_local(error: BaseException) -> TypeGuard[OSError]:
    """Whether `error` is the file system's: such as a full disk, which a look into the cache would hide."""
    of_network = (ConnectionError, TimeoutError, socket.gaierror)
    return isinstance(error, OSError) and error.errno is not None and not isinstance(error, of_network)


def _download(name: str, *, local_files_only: bool) -> Path:
    from huggingface_hub import snapshot_download

    return Path(
        snapshot_download(
            name,
            allow_patterns=_PATTERNS,
            ignore_patterns=_NEVER_READ,
            etag_timeout=_TIMEOUT_SECONDS,
            local_files_only=local_files_only,
        )
    )


def _cached(name: str, unreachable: str) -> Path:
    try:
        folder = _download(name, local_files_only=True)
    except FileNotFoundError as error:
        missing = CONFIG if type(error).__name__ == "LocalEntryNotFoundError" else "part"
        raise ModelFileError(
            f"{missing} of {name} is not in the local cache and {unreachable}; {_ELSEWHERE}."
        ) from None
    # An interrupted download leaves a snapshot behind that older clients return as if it were whole.
    for file in _needed_files(folder):
        if not (folder / file).exists():
            raise ModelFileError(
                f"{file} of {name} is not in the local cache and {unreachable}: its download was not "
                "finished; repeat it with a connection."
            )
    return folder


def _needed_files(folder: Path) -> list[str]:
    """What every complete snapshot has: the configuration, and one file of weights or all shards of its index."""
    if not (folder / INDEX).exists():
        return [CONFIG, SINGLE_FILE]
    listed = read_json(folder / INDEX).get("weight_map")
    return [CONFIG, *(sorted({str(file) for file in listed.values()}) if isinstance(listed, dict) else [])]
