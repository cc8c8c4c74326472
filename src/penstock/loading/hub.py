"""A model's name → its directory, or GGUF file: bundled, given as one, cached from the hub, or downloaded."""

import os.path
import re
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeGuard

from penstock.bundled.registry import bundled_models, find_bundled
from penstock.core.errors import ModelFileError
from penstock.loading.folder import CONFIG, INDEX, PICKLED, SINGLE_FILE, gguf_in, weight_names
from penstock.loading.gguf import SUFFIX, is_gguf
from penstock.loading.gguf_parts import first_part
from penstock.loading.json_file import read_json

# Nothing else is read: no pickled weights, no code.
_PATTERNS = ["*.json", "*.safetensors", "*.jinja", "tokenizer.model", "*.spm", "s*piece*.model"]
# The same weights once more, in their authors' own layout.
_NEVER_READ = ["consolidated*.safetensors", "*/*"]
_TIMEOUT_SECONDS = 5.0
_ELSEWHERE = "pass the path of a directory with config.json, safetensors files and tokenizer.json, or of a .gguf file"


@dataclass(frozen=True, slots=True)
class CachedModel:
    """A model in the hub's cache.

    Attributes:
        name: the hub's.
        directory: the snapshot that the name means; None where only other revisions are cached.
        size: bytes on disk, of all its revisions.
    """

    name: str
    directory: Path | None
    size: int


@dataclass(frozen=True, slots=True)
class HubCache:
    """What the hub's cache holds, by name; `problems` are a sentence for each thing in it that is not sound."""

    folder: Path
    models: tuple[CachedModel, ...]
    problems: tuple[str, ...]


def resolve_model(name: str) -> Path:
    """The directory of `name`: a bundled model's, itself where it is one or a GGUF file, else the hub's snapshot.

    Of a directory with one model in GGUF files, and no other, it is the GGUF file; of a file that is a part of a model,
    the first part. The snapshot is taken from the cache where that is complete. The path is absolute: resolving it
    again gives the same, also where a folder has the name of a bundled model. Raises ModelFileError where there is no
    such model, or it is not cached and there is no network; the environment variable HF_HUB_OFFLINE is honoured.
    """
    bundled = find_bundled(name)
    if bundled is not None:
        return bundled.installed()
    # Unlike Path's own methods, these do not raise where the text cannot be a path, such as one that is too long.
    path = os.path.expanduser(name)
    if os.path.isdir(path):
        folder = Path(path).absolute()
        return gguf_in(folder) or folder
    if is_gguf(path):
        return first_part(Path(path).absolute())
    if os.path.exists(path):
        if ".gguf" in os.path.basename(path):
            raise ModelFileError(f"{name} is a piece of a GGUF file; join all of them with `cat`, in order.")
        raise ModelFileError(f"{name} is a file; {_ELSEWHERE}.")
    if not is_hub_name(name):
        names = " or ".join(model.name for model in bundled_models())
        raise ModelFileError(
            f"The directory {name} does not exist; {_ELSEWHERE}, a hub name such as owner/model, or a bundled model's "
            f"name ({names})."
        )
    return _snapshot(name)


def is_hub_name(name: str) -> bool:
    """Whether the hub could have a model of this name, with its owner."""
    return re.fullmatch(r"\w[\w.-]*/\w[\w.-]*", name) is not None


def scan_cache() -> HubCache:
    """What the hub's cache holds, where HF_HUB_CACHE and HF_HOME put it. A cache that does not exist holds nothing."""
    from huggingface_hub import constants, scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    folder = Path(constants.HF_HUB_CACHE).expanduser()
    if os.path.isfile(folder):
        return HubCache(folder, (), (f"The hub's cache {folder} is a file; set HF_HUB_CACHE to a directory.",))
    try:
        found = scan_cache_dir(folder)
    except CacheNotFound:
        return HubCache(folder, (), ())
    except (OSError, ValueError) as error:
        return HubCache(folder, (), (f"The hub's cache cannot be read ({error}); set HF_HUB_CACHE to one that can.",))
    models = []
    for repository in found.repos:
        if repository.repo_type == "model":
            main = repository.refs.get("main")
            directory = None if main is None else main.snapshot_path
            models.append(CachedModel(repository.repo_id, directory, repository.size_on_disk))
    models.sort(key=lambda model: model.name.lower())
    return HubCache(folder, tuple(models), tuple(sorted(str(warning) for warning in found.warnings)))


def _snapshot(name: str) -> Path:
    # The hub's client takes a while to import and most models are directories.
    from huggingface_hub import HfApi
    from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, HFValidationError, RepositoryNotFoundError

    # The client has changed its HTTP library more than once; its own error is always derived from that library's.
    connection_errors: tuple[type[BaseException], ...] = (OSError, *HfHubHTTPError.__bases__)
    try:
        # Unlike a download, this is not retried for half a minute where there is no network.
        info = HfApi().model_info(name, timeout=_TIMEOUT_SECONDS)
        _check_offer(name, [file.rfilename for file in info.siblings or ()])
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


def _check_offer(name: str, files: Sequence[str]) -> None:
    """Raises ModelFileError if a model of the hub has weights in other formats only than the one that is downloaded."""
    if not files or any(file.endswith(".safetensors") for file in files):
        return
    if ggufs := sorted(file for file in files if file.endswith(SUFFIX)):
        raise ModelFileError(
            f"{name} has GGUF files only; download one with `hf download {name} {ggufs[0]}`, and pass its path."
        )
    if pickled := sorted(file for file in files if file.endswith(PICKLED)):
        raise ModelFileError(
            f"{name} has weights only as PyTorch pickles them ({pickled[0]}), which is not read, since it can run "
            "code; take a model with safetensors files."
        )


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
    """Names what every complete snapshot has: the configuration, and one file of weights or all shards of its index."""
    if os.path.exists(folder / SINGLE_FILE) or not os.path.exists(folder / INDEX):
        # A single file may have another name; what lacks of several is told when they are read.
        return [CONFIG] if weight_names(folder) else [CONFIG, SINGLE_FILE]
    listed = read_json(folder / INDEX).get("weight_map")
    return [CONFIG, *(sorted({str(file) for file in listed.values()}) if isinstance(listed, dict) else [])]
