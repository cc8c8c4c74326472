"""What is stored belongs to a tenant, and for all others it is not there: a server over HTTP against a naive model."""

import functools
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from penstock.access.keys import Keyring, entry, only_key, parse_keys
from penstock.storage.quotas import StorageQuota
from penstock.text.tokenizer import Tokenizer, load_tokenizer
from support.stored_server import StoredServer, line, serving_stored
from support.tokenizers_made import add_bos, make_raw, save

TENANTS = ("alice", "bob", "default")
ASKING = st.sampled_from(TENANTS)
SECRETS = {name: f"penstock-the-secret-of-{name}" for name in TENANTS}


def keyring() -> Keyring:
    text = "".join(entry(name, SECRETS[name]) for name in TENANTS[:2])
    return Keyring([*parse_keys(text.encode(), Path("keys.toml")), only_key(SECRETS["default"])])


@functools.cache
def _tokenizer() -> Tokenizer:
    with tempfile.TemporaryDirectory() as folder:
        return load_tokenizer(save(add_bos(make_raw("byte_level")), Path(folder)))


class Owners(RuleBasedStateMachine):
    """Whatever tenants do, each finds what it has made, and nothing else."""

    def __init__(self) -> None:
        super().__init__()
        self._ended = ExitStack()
        self.server = self.serve()
        # The owner of each thing that exists, by id, which files are a batch's output, and what responses go on from.
        self.files: dict[str, str] = {}
        self.outputs: set[str] = set()
        self.batches: dict[str, str] = {}
        self.responses: dict[str, str] = {}
        self.previous: dict[str, str] = {}

    def serve(self) -> StoredServer:
        """Until the end of the test."""
        folder = Path(self._ended.enter_context(tempfile.TemporaryDirectory()))
        limits = StorageQuota(files=1000, unfinished_batches=1000)
        return self._ended.enter_context(serving_stored(folder, _tokenizer(), limits, keyring()))

    def teardown(self) -> None:
        self._ended.close()

    def calls(self) -> list[Any]:
        """Everything that engines were asked, in order."""
        return self.server.engine.calls

    def ask(self, asking: str, method: str, path: str, **fields: object) -> httpx.Response:
        return self.server.http.request(
            method,
            path,
            headers={"x-api-key": SECRETS[asking]},
            **fields,  # type: ignore[arg-type]
        )

    def any_of(self, data: st.DataObject, things: dict[str, str]) -> str:
        return data.draw(st.sampled_from([*things, "unknown"]))

    @initialize()
    def begin(self) -> None:
        for asking in TENANTS:
            self.upload(asking)
            self.respond(asking)

    @rule(asking=ASKING)
    def upload(self, asking: str) -> None:
        form = {"files": {"file": ("in.jsonl", line("a", max_tokens=1))}, "data": {"purpose": "batch"}}
        self.files[self.ask(asking, "POST", "/v1/files", **form).json()["id"]] = asking

    @rule(asking=ASKING, data=st.data())
    def create(self, asking: str, data: st.DataObject) -> None:
        file = self.any_of(data, self.files)
        body = {"input_file_id": file, "endpoint": "/v1/completions", "completion_window": "24h"}
        answer = self.ask(asking, "POST", "/v1/batches", json=body)
        if self.files.get(file) != asking:
            assert answer.status_code == 404
            return
        if file in self.outputs:
            assert answer.status_code == 400
            return
        batch = answer.json()["id"]
        self.batches[batch] = asking
        self.server.http.headers["x-api-key"] = SECRETS[asking]
        ended = self.server.wait(batch)
        del self.server.http.headers["x-api-key"]
        assert ended["status"] == "completed"
        assert self.calls()[-1].standing.tenant == asking
        self.files[ended["output_file_id"]] = asking
        self.outputs.add(ended["output_file_id"])

    @rule(asking=ASKING, data=st.data(), ends=st.sampled_from(["", "/content"]))
    def read_file(self, asking: str, data: st.DataObject, ends: str) -> None:
        file = self.any_of(data, self.files)
        answer = self.ask(asking, "GET", f"/v1/files/{file}{ends}")
        assert answer.status_code == (200 if self.files.get(file) == asking else 404)

    @rule(asking=ASKING, data=st.data())
    def delete_file(self, asking: str, data: st.DataObject) -> None:
        file = self.any_of(data, self.files)
        answer = self.ask(asking, "DELETE", f"/v1/files/{file}")
        assert answer.status_code == (200 if self.files.get(file) == asking else 404)
        if answer.status_code == 200:
            del self.files[file]

    @rule(asking=ASKING, data=st.data())
    def read_batch(self, asking: str, data: st.DataObject) -> None:
        batch = self.any_of(data, self.batches)
        answer = self.ask(asking, "GET", f"/v1/batches/{batch}")
        assert answer.status_code == (200 if self.batches.get(batch) == asking else 404)
        # It has ended, which only its owner is told.
        answer = self.ask(asking, "POST", f"/v1/batches/{batch}/cancel")
        assert answer.status_code == (409 if self.batches.get(batch) == asking else 404)

    @rule(asking=ASKING, data=st.data())
    def page(self, asking: str, data: st.DataObject) -> None:
        for kind, things in (("files", self.files), ("batches", self.batches)):
            after = self.any_of(data, things)
            own = [thing for thing, owner in things.items() if owner == asking]
            answer = self.ask(asking, "GET", f"/v1/{kind}?after={after}&limit=100")
            if things.get(after) != asking:
                assert answer.status_code == 404
            else:
                assert [each["id"] for each in answer.json()["data"]] == own[: own.index(after)][::-1]

    @rule(asking=ASKING)
    def respond(self, asking: str) -> None:
        answer = self.ask(asking, "POST", "/v1/responses", json={"input": "hi"})
        assert answer.status_code == 200
        self.responses[answer.json()["id"]] = asking

    @rule(asking=ASKING, data=st.data())
    def respond_from(self, asking: str, data: st.DataObject) -> None:
        previous = self.any_of(data, self.responses)
        answer = self.ask(asking, "POST", "/v1/responses", json={"input": "hi", "previous_response_id": previous})
        link: str | None = previous
        while self.responses.get(link or "") == asking:
            link = self.previous.get(link or "")
        if link is None:
            made = answer.json()["id"]
            self.responses[made], self.previous[made] = asking, previous
        else:
            assert answer.json()["error"]["code"] == "previous_response_not_found"

    @rule(asking=ASKING, data=st.data())
    def read_response(self, asking: str, data: st.DataObject) -> None:
        response = self.any_of(data, self.responses)
        status = 200 if self.responses.get(response) == asking else 404
        for path in ("", "/input_items"):
            assert self.ask(asking, "GET", f"/v1/responses/{response}{path}").status_code == status
        answer = self.ask(asking, "POST", f"/v1/responses/{response}/cancel")
        assert answer.status_code == (400 if status == 200 else 404)

    @rule(asking=ASKING, data=st.data())
    def delete_response(self, asking: str, data: st.DataObject) -> None:
        response = self.any_of(data, self.responses)
        answer = self.ask(asking, "DELETE", f"/v1/responses/{response}")
        assert answer.status_code == (200 if self.responses.get(response) == asking else 404)
        if answer.status_code == 200:
            del self.responses[response]

    @invariant()
    def lists_have_ones_own_only(self) -> None:
        for asking in TENANTS:
            for kind, things in (("files", self.files), ("batches", self.batches)):
                listed = self.ask(asking, "GET", f"/v1/{kind}?limit=100").json()["data"]
                assert {each["id"] for each in listed} == {one for one, owner in things.items() if owner == asking}
                assert not {"owner", "tenant"} & {name for each in listed for name in each}


TestOwners = Owners.TestCase
TestOwners.settings = settings(max_examples=8, stateful_step_count=20)
