"""One model of a server: what is known of it from its start on."""

import hashlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from msgspec.structs import replace

from penstock.access.limits import AdmissionLimits, AdmissionOptions, resolve_admission
from penstock.assembly.server_options import ModelOptions, ServeOptions
from penstock.assembly.starting import EngineStart
from penstock.core.config import EngineConfig, Reason
from penstock.core.errors import ConfigurationError
from penstock.engine.messages import Ready
from penstock.observability.accounts import Accounts
from penstock.observability.explain.explain import Figures
from penstock.observability.recent import Recent
from penstock.observability.tracing import Tracing
from penstock.server.capacity import capacity_of, make_admission
from penstock.server.served import Model
from penstock.text.chat_template import NO_TOKENIZER_FOR_TEMPLATE, ChatEncoder, ChatTemplate, load_chat_template
from penstock.text.output_format import OutputFormat, choose_format
from penstock.text.tokenizer import Tokenizer

NO_TEXT = "The model has no tokenizer.json: prompts must be token ids, and outputs are ids without text."


@dataclass(frozen=True)
class StartedModel:
    """A model that is served, as its start tells it.

    Attributes:
        ready: what its engine said.
        tokenizer_seconds: that the tokenizer took, beside the engine.
        notes: what users should know of it.
        reasons: all settings of engine and model.
        told: of these, those that say what can be asked of it, and what its files made otherwise.
    """

    name: str
    ready: Ready
    tokenizer_seconds: float
    notes: tuple[str, ...]
    reasons: tuple[Reason, ...]
    told: tuple[Reason, ...]


class ServedModel:
    """A model that starts and is served.

    Attributes:
        start: its engine, and what that loads; `engine` is its client.
        limits: of what is taken on, once it is `open`.
        accounts, reading: of its requests, and how these become prompts, once it is loaded.
    """

    def __init__(self, start: EngineStart, options: ModelOptions, serving: ServeOptions) -> None:
        self.start, self.engine = start, start.engine
        self._options, self._serving = options, serving

    @property
    def names(self) -> tuple[str, ...]:
        """Those under which it is served, its own first."""
        return self.start.prepared.served_names(self._options.names)

    def open(self) -> None:
        """Find out what is taken on. Raises ConfigurationError."""
        config = self.start.prepared.config
        self.limits, _ = resolve_admission(self._serving.admission, capacity_of(config))
        self._admission = make_admission(self.limits.bounds, config)

    async def load(self, traces: Tracing | None) -> None:
        """Have its engine load it, and load its tokenizer meanwhile. Raises StartupError."""
        before = time.monotonic()
        tokenizer = await self.start.load()
        self.reading = text_settings(tokenizer, self._options)
        self._tokenizer_seconds = time.monotonic() - before
        text = None if tokenizer is None else partial(tokenizer.decode, skip_special=False)
        recent = Recent(keep_prompts=self._serving.explain_prompts)
        self.accounts = Accounts(self.engine, recent, text, traces)

    async def wait(self) -> None:
        """Wait until its engine serves; what that has found out takes the place of what was estimated."""
        self.ready = await self.start.ready(self.reading.tokenizer, self._options.names)
        self.accounts.figures = Figures(self.ready.work, self.ready.ceilings)
        prepared = self.start.prepared
        limits, bounds = measured_limits(self._serving.admission, prepared.config, self.ready)
        self._admission.bounds = limits.bounds
        ends = prepared.end_tokens(self.reading.tokenizer).reason
        self.reasons = settled([*prepared.reasons, *self.reading.reasons, ends, *bounds], self.ready)

    def parts(self) -> Model:
        """What a server is given of it."""
        prepared, reading = self.start.prepared, self.reading
        return Model(
            engine=self.engine,
            names=self.names,
            tokenizer=reading.tokenizer,
            template=reading.template,
            output_format=reading.output_format,
            defaults=prepared.sampling,
            admission=self._admission,
            settings=self._serving.figures.settings(prepared.config, self.limits.bounds.requests),
            accounts=self.accounts,
        )

    @property
    def text_identity(self) -> str:
        """The same for models that make the same prompts of requests, and the same answers of tokens."""
        reading = self.reading
        parts = [
            b"" if reading.template is None else reading.template.source.encode(),
            repr(reading.output_format).encode(),
            repr(sorted(self.start.prepared.checkpoint.generation_config.items())).encode(),
            repr(self._serving.policies).encode(),
            b"" if reading.tokenizer is None else reading.tokenizer.identity,
        ]
        return hashlib.sha256(b"".join(len(part).to_bytes(8) + part for part in parts)).hexdigest()

    def told(self) -> StartedModel:
        """What there is to tell of its start, once it serves."""
        found = self.start.prepared.found
        return StartedModel(
            name=self.names[0],
            ready=self.ready,
            tokenizer_seconds=self._tokenizer_seconds,
            notes=self._notes(),
            reasons=tuple(self.reasons),
            told=tuple(each for each in self.reasons if each.at_start or each in found),
        )

    def _notes(self) -> tuple[str, ...]:
        notes, reading = list(self.ready.notes), self.reading
        if reading.template is not None:
            notes += reading.template.notes
        if reading.tokenizer is None:
            notes.append(NO_TEXT)
        else:
            notes += reading.tokenizer.check_against(self.start.prepared.declaration.vocab_size)
        return tuple(notes)


@dataclass(frozen=True)
class TextSettings:
    """How conversations become prompts and outputs become answers, and why; empty without a tokenizer."""

    tokenizer: Tokenizer | None = None
    template: ChatTemplate | None = None
    output_format: OutputFormat | None = None
    reasons: Sequence[Reason] = ()


def text_settings(tokenizer: Tokenizer | None, options: ModelOptions) -> TextSettings:
    """How a model's texts are read and written. Raises ConfigurationError and TokenizerError."""
    if tokenizer is None:
        if options.chat_template is not None:
            raise ConfigurationError(NO_TOKENIZER_FOR_TEMPLATE)
        return TextSettings()
    template = load_chat_template(tokenizer, options.chat_template)
    output_format, reasons = choose_format(template, tokenizer, *options.parsers)
    return TextSettings(tokenizer, template, output_format, [*ChatEncoder(tokenizer, template).reasons, *reasons])


def prompt_identity(reading: TextSettings) -> str:
    """The same for readers that make the same prompts of requests; empty where prompts are token ids only."""
    if reading.tokenizer is None:
        return ""
    template = b"" if reading.template is None else reading.template.source.encode()
    reasons = reading.output_format is not None and reading.output_format.reasoning
    parts = (template, b"reasons" if reasons else b"", reading.tokenizer.identity)
    return hashlib.sha256(b"".join(len(part).to_bytes(8) + part for part in parts)).hexdigest()


def measured_limits(
    options: AdmissionOptions, config: EngineConfig, ready: Ready
) -> tuple[AdmissionLimits, list[Reason]]:
    """The limits, and why, with the pool that the engine has; on a GPU it was estimated before."""
    cache = replace(config.cache, num_blocks=ready.limits.num_blocks, wish=None)
    return resolve_admission(options, capacity_of(replace(config, cache=cache)))


def settled(reasons: list[Reason], ready: Ready) -> list[Reason]:
    """The reasons, with what the engine has found out in the place of what was estimated."""
    found = {reason.setting: reason for reason in ready.settled}
    return [found.get(reason.setting, reason) for reason in reasons]
