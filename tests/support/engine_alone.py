"""An engine in this process, without a server or a client: steps are taken one by one."""

from pathlib import Path
from typing import Any

from penstock.assembly.build import build_engine
from penstock.assembly.prepare import prepare
from penstock.configuration.options import EngineOptions
from penstock.core.plan import TokenLogprobs
from penstock.engine.intake import Intake
from penstock.engine.worker import BuiltEngine


class Engine:
    """One without a server: requests are queued as its loop queues them.

    Attributes:
        read: bytes that steps have told to have read from tiers.
    """

    def __init__(self, folder: Path, role: str, **others: Any) -> None:
        asked = {"max_model_len": 256, "max_num_seqs": 2, "speculative": "off", "threads": 1, **others}
        options = EngineOptions.of("haiku", role=role, prefix_secret_file=str(folder / "secret"), **asked)
        prepared = prepare(options, api_beside=False)
        self.built: BuiltEngine = build_engine(prepared.config, lambda *_: None)
        self.core = self.built.core
        self.read = 0
        self.intake = Intake(self.core.scheduler.limits, self.built.vocab_size, (), has_text=False)

    def submit(self, prompt: list[int], params: Any, **others: Any) -> int:
        """The id of a request that is queued."""
        request = self.intake.request(prompt, params, **others)
        if self.core.needs_preparation(request):
            self.core.find(request)
            self.core.prepare(request)
        self.core.add(request)
        return request.request_id

    def until(self, request: int, tokens: int) -> tuple[list[int], list[TokenLogprobs]]:
        """What it has, once it has that number of tokens at least, or has ended."""
        found: list[int] = []
        logprobs: list[TokenLogprobs] = []
        while len(found) < tokens:
            for output in self.core.step():
                if output.request_id == request:
                    found += output.gained.tokens
                    logprobs += output.gained.logprobs or ()
            self.read += sum(came.bytes for each in self.core.facts.fetched for came in each.came)
        return found, logprobs

    def leave(self, request: int) -> None:
        """Its client goes; what was computed of it is offered."""
        self.core.abort(request)
        while self.core.has_work:
            self.core.step()
        assert self.built.flush(600.0)
