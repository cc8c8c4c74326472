"""A model's name → its directory: given as one, cached from the Hugging Face hub, or downloaded."""

from pathlib import Path

from penstock.core.errors import ModelFileError
from penstock.loading.checkpoint import CONFIG

# Nothing else is read: no pickled weights, no code.
_PATTERNS = ["*.json", "*.safetensors", "*.jinja", "tokenizer.model"]
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
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
    )

    try:
        # Unlike a download, this is not retried for half a minute where there is no network.
        HfApi().model_info(name, timeout=_TIMEOUT_SECONDS)
        return Path(snapshot_download(name, allow_patterns=_PATTERNS, etag_timeout=_TIMEOUT_SECONDS))
    except GatedRepoError:
        reason = f"{name} is gated on the hub; accept its licence there and log in with `hf auth login`"
    except RepositoryNotFoundError:
        reason = f"The hub has no model {name}, or it is private"
    except HFValidationError:
        reason = f"{name} is neither a directory nor a valid hub name"
    except Exception as error:
        # Offline, or whatever the client's own dependencies raise where a connection fails.
        try:
            return Path(snapshot_download(name, allow_patterns=_PATTERNS, local_files_only=True))
        except LocalEntryNotFoundError:
            reason = (
                f"{CONFIG} of {name} is not in the local cache and the hub cannot be reached ({type(error).__name__})"
            )
    raise ModelFileError(f"{reason}; {_ELSEWHERE}.")
