"""A server with storage whose engine is scripted, in this process, and what clients do with it."""

import contextlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from penstock.access.keys import Keyring
from penstock.batches import runner
from penstock.server.app import create_app
from penstock.server.replica_state import Telling
from penstock.storage.condition import StorageCondition
from penstock.storage.quotas import StorageQuota
from penstock.storage.store import Store
from penstock.text.tokenizer import Tokenizer
from support.documented import described_client
from support.http_server import running
from support.scripted_engine import ScriptedEngine
from support.waiting import until

ENDED = ("failed", "completed", "expired", "cancelled")


@dataclass
class StoredServer:
    """A running server and its parts."""

    url: str
    http: httpx.Client
    engine: ScriptedEngine
    store: Store
    folder: Path

    def upload(self, contents: bytes, **fields: str) -> dict[str, Any]:
        """A file for a batch."""
        response = self.http.post(
            "/v1/files", files={"file": ("in.jsonl", contents)}, data={"purpose": "batch", **fields}
        )
        assert response.status_code == 200, response.text
        return response.json()

    def create(self, file_id: str, **fields: object) -> dict[str, Any]:
        """A batch of completions."""
        body = {"input_file_id": file_id, "endpoint": "/v1/completions", "completion_window": "24h", **fields}
        response = self.http.post("/v1/batches", json=body)
        assert response.status_code == 200, response.text
        return response.json()

    def batch(self, batch_id: str) -> dict[str, Any]:
        """As it is now."""
        return self.http.get(f"/v1/batches/{batch_id}").json()

    def wait(self, batch_id: str, statuses: Sequence[str] = ENDED) -> dict[str, Any]:
        """As it is once it has one of the statuses."""
        looks = [self.batch(batch_id)]

        def has_come() -> bool:
            looks.append(self.batch(batch_id))
            return looks[-1]["status"] in statuses

        until(has_come, lambda: looks[-1])
        return looks[-1]

    def lines(self, file_id: str | None) -> list[dict[str, Any]]:
        """Those of an output file; none where there is no file."""
        if file_id is None:
            return []
        response = self.http.get(f"/v1/files/{file_id}/content")
        assert response.status_code == 200
        return [json.loads(line) for line in response.text.splitlines()]


def line(custom_id: str, url: str = "/v1/completions", **body: object) -> bytes:
    """One request of a batch."""
    fields = {"custom_id": custom_id, "method": "POST", "url": url, "body": {"prompt": [5], **body}}
    return json.dumps(fields).encode() + b"\n"


@contextlib.contextmanager
def serving_stored(
    folder: Path,
    tokenizer: Tokenizer | None = None,
    limits: StorageQuota | None = None,
    keys: Keyring | None = None,
    condition: StorageCondition | None = None,
    **model: object,
) -> Iterator[StoredServer]:
    """Serve with what is kept in `folder`."""
    store = Store.open(folder, limits, condition, keys.tenants if keys else ())
    with _serving(store, folder, tokenizer, keys, **model) as server:
        yield server


@contextlib.contextmanager
def serving_shared(
    url: str,
    tokenizer: Tokenizer | None = None,
    limits: StorageQuota | None = None,
    keys: Keyring | None = None,
    condition: StorageCondition | None = None,
    **model: object,
) -> Iterator[StoredServer]:
    """Serve with what is kept in a database, which others may have, too."""
    with pytest.MonkeyPatch.context() as patch:
        # Else what another has left, or was asked for, is waited for for seconds.
        patch.setattr(runner, "_LOOK_SECONDS", 0.1)
        store = Store.share(url, "model scripted", limits, condition, keys.tenants if keys else ())
        with _serving(store, Path(), tokenizer, keys, **model) as server:
            yield server


@contextlib.contextmanager
def _serving(
    store: Store, folder: Path, tokenizer: Tokenizer | None, keys: Keyring | None, **model: object
) -> Iterator[StoredServer]:
    engine = ScriptedEngine(None if tokenizer is None else tokenizer.table, range(5, 9), **model)
    try:
        app = create_app(engine, tokenizer, store=store, keys=keys, telling=Telling(store=store.id))
        with running(app) as url, described_client(url) as http:
            yield StoredServer(url, http, engine, store, folder)
    finally:
        store.close()
