"""API keys on the command line: which ones `penstock serve` takes, and `penstock key`, which makes one."""

import getpass
import os
import sys
from collections.abc import Mapping
from pathlib import Path

import typer

from penstock.access.exposure import VARIABLE, Access
from penstock.access.keys import ONLY, SHORTEST_GOOD_KEY, Keyring, entry, new_key, only_key, parse_keys, read_keys
from penstock.core.errors import ConfigurationError
from penstock.tenancy.records import Role

_DAY_SECONDS = 86400.0


def read_access(api_key: str | None, api_key_file: Path | None, no_auth: bool) -> Access:
    """What options and the environment say. Raises ConfigurationError.

    The variable is removed, so that no other process gets it from this one.
    """
    warnings = []
    given = os.environ.pop(VARIABLE, None)
    if api_key == "-":
        given = getpass.getpass("API key: ") if sys.stdin.isatty() else sys.stdin.readline().rstrip("\r\n")
    elif api_key is not None:
        given = api_key
        warnings.append(
            "Others on this machine can read the key of --api-key in the list of processes; "
            f"{VARIABLE}, --api-key-file or --api-key - (which reads it from standard input) keep it from them."
        )
    keys = [] if given is None else [only_key(given)]
    if given is not None and len(given) < SHORTEST_GOOD_KEY:
        warnings.append(
            f"The API key has only {len(given)} characters and may be guessed; `penstock key NAME` makes one."
        )
    if api_key_file is not None:
        keys += read_keys(api_key_file)
        if given is not None and any(key.tenant.name == ONLY for key in keys[1:]):
            raise ConfigurationError(f"{api_key_file} has a key named {ONLY!r}, as the one beside it is; rename it.")
    if keys and no_auth:
        raise ConfigurationError("--no-auth cannot be combined with API keys; leave one of them out.")
    return Access(Keyring(keys), no_auth, tuple(warnings))


def run_key(
    name: str,
    weight: float | None,
    max_stored_bytes: int | None,
    limits: Mapping[str, int | None],
    add: Path | None,
    *,
    for_others: bool,
) -> None:
    """Make a key, print it once, and print its entry or add that to a file. Raises ConfigurationError."""
    key = new_key()
    text = entry(name, key, weight, max_stored_bytes, limits, for_others=for_others)
    if add is None:
        typer.echo(
            f"The entry for the file of --api-key-file:\n\n{text}\nThe key, which is shown only now:\n", err=True
        )
    else:
        _append(add, text)
        typer.echo(f"{add} has an entry for {name!r} now. The key, which is shown only now:\n", err=True)
    typer.echo(key)


def run_key_in_database(
    name: str,
    database: str | None,
    project: str | None,
    days: float | None,
    in_file: Mapping[str, object],
    *,
    admin: bool,
    auditor: bool,
) -> None:
    """Make a key in the database of a gateway. Raises ConfigurationError, RequestError.

    Args:
        in_file: options of keys in files; those that are given are not None.
    """
    from penstock.cli.tenants import run_new_key

    given = [option for option, value in in_file.items() if value is not None]
    if given:
        raise ConfigurationError(
            f"{given[0]} is for keys in a file; what one in a database may use is set by `penstock tenant set`."
        )
    if (project is not None) + admin + auditor != 1:
        raise ConfigurationError(
            "A key is of a project, an administrator or an auditor: give one of the three options."
        )
    role: Role = "admin" if admin else "auditor" if auditor else "member"
    run_new_key(database, name, project, role, None if days is None else days * _DAY_SECONDS)


def _append(path: Path, text: str) -> None:
    """Add an entry to a file, which is made where there is none, and must then be valid."""
    try:
        with os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600), "r+b") as file:
            content = file.read()
            separator = b"" if not content else b"\n" if content.endswith(b"\n") else b"\n\n"
            Keyring(parse_keys(content + separator + text.encode(), path))
            file.write(separator + text.encode())
    except OSError as error:
        raise ConfigurationError(f"The API key file {path} cannot be written ({error.strerror}).") from error
