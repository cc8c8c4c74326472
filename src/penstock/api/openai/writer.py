"""Responses of completions and chats, whole or as server-sent events.

Events are put together from bytes: a stream's prefix is encoded once, and a token costs the encoding of its text.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from penstock.api.job import Job
from penstock.api.kv_policy import context_usage
from penstock.api.obfuscation import padding
from penstock.api.openai.forms import ChoiceForm, MessageForm, TextForm
from penstock.api.openai.logprobs import ChatLogprobWriter, CompletionLogprobWriter, LogprobWriter, prompt_logprobs
from penstock.api.sample import Tally, sample_of
from penstock.api.segments import Gain, Segments
from penstock.core.beam_search import BeamScore
from penstock.core.errors import PenstockError
from penstock.core.plan import TokenLogprobs
from penstock.engine.interface import RequestOutput, SampleDelta
from penstock.http.error_bodies import DONE, PLAIN, ErrorForm
from penstock.text.table import TokenTable

_encode = msgspec.json.Encoder().encode


class ResponseKind(msgspec.Struct, frozen=True):
    """Where chats and completions differ in their JSON."""

    id_prefix: str
    whole_object: str
    chunk_object: str
    is_chat: bool


CHAT = ResponseKind(
    id_prefix="chatcmpl-", whole_object="chat.completion", chunk_object="chat.completion.chunk", is_chat=True
)
COMPLETION = ResponseKind(
    id_prefix="cmpl-", whole_object="text_completion", chunk_object="text_completion", is_chat=False
)


class _ChoiceWriter:
    """What has been written, or collected, of one sample of one prompt."""

    def __init__(
        self,
        index: int,
        prompt: int,
        segments: Segments,
        form: ChoiceForm,
        logprob_writer: LogprobWriter | None,
        *,
        says_text_only: bool,
        plain: bool,
    ) -> None:
        self.index = index
        self.prompt = prompt
        self.segments = segments
        self.sample = segments.sample
        self.form = form
        self.prefix = b""
        self.started = False
        self.token_ids: list[int] = []
        self.logprobs: list[TokenLogprobs] = []
        self.logprob_writer = logprob_writer
        # Whether its events say nothing beside its text, until it ends; and whether nothing is put around them either.
        self.says_text_only = says_text_only
        self.plain = plain
        self.seed: int | None = None
        self.beam: BeamScore | None = None

    @property
    def finish(self) -> str | None:
        """Why it ended, as the API has it; None while it goes on."""
        ending = self.sample.ending
        if ending is None:
            return None
        return "tool_calls" if ending.reason == "stop" and self.segments.calls else ending.reason


class ResponseWriter:
    """Writes one response. Outputs of prompt p carry sample indices from p·n on.

    Attributes:
        id: the response's id.
        created: when it began, in seconds of the Unix clock.
        errors: how an error before any output is written.
    """

    errors: ErrorForm = PLAIN

    def __init__(self, kind: ResponseKind, job: Job, model: str, table: TokenTable | None) -> None:
        self.id, self.created = job.response(kind.id_prefix)
        self._kind = kind
        self._job = job
        self._model = model
        self._table = table
        self._tally = Tally()
        self._prompt_tokens = dict(enumerate(map(len, job.prompts)))
        self._cached: dict[int, int] = {}
        self._dropped: dict[int, int] = {}
        self._prompt_logprobs: dict[int, list[TokenLogprobs | None]] = {}
        self._head = b""
        self._end_events_with(b',"usage":null' if job.include_usage else b"")
        self._choices = [
            self._choice(prompt, sample) for prompt, params in enumerate(job.params) for sample in range(params.n)
        ]

    def chunk(self, output: RequestOutput) -> bytes:
        """The events of one output; empty where it holds nothing to show.

        Raises RowFailed, StepOutOfMemory or EngineUnavailable where a sample has failed.
        """
        if not self._head:
            self._begin(output)
        if len(output.deltas) == 1 and output.prompt_logprobs is None:
            choice = self._choices[output.deltas[0].index]
            if choice.plain and choice.started and choice.segments.goes_on_with(output.deltas[0]):
                # The common case, and the one that has to be cheap: nothing but more text.
                text = output.deltas[0].text
                return choice.prefix + choice.form.more(text) + self._plain_tail if text else b""
        self._note(output)
        events: list[bytes] = []
        for delta in output.deltas:
            choice = self._choices[delta.index]
            for part, gains in choice.segments.take(delta):
                if self._job.continuous_usage:
                    self._end_events_with(b',"usage":' + _encode(self._usage()))
                events += self._events(choice, part, gains)
        return b"".join(map(_padded, events) if self._job.obfuscated else events)

    def end(self) -> bytes:
        """What follows the last output of a stream."""
        if not self._job.include_usage:
            return DONE
        return self._head + b'],"usage":' + _encode(self._usage()) + b"}\n\n" + DONE

    def failed(self, error: PenstockError) -> bytes:
        """What ends a stream that has begun and cannot go on."""
        return self.errors.event(error)

    def add(self, output: RequestOutput) -> None:
        """Collect an output for `body`.

        Raises RowFailed, StepOutOfMemory or EngineUnavailable where a sample has failed.
        """
        self._note(output)
        for delta in output.deltas:
            choice = self._choices[delta.index]
            for part, _ in choice.segments.take(delta):
                choice.token_ids += part.token_ids
                choice.logprobs += part.logprobs or ()

    @property
    def completion_tokens(self) -> int:
        """Tokens of all choices so far."""
        return self._tally.tokens

    @property
    def enough(self) -> bool:
        """Whether the response is complete although the engine goes on with some of its choices."""
        return self.cut > 0 and all(choice.sample.ending is not None for choice in self._choices)

    @property
    def cut(self) -> int:
        """How many choices are complete although the engine goes on with them."""
        return sum(choice.sample.cut for choice in self._choices)

    def body(self) -> bytes:
        """The body of the whole response, as JSON."""
        response: dict[str, Any] = {
            "id": self.id,
            "object": self._kind.whole_object,
            "created": self.created,
            "model": self._model,
            # One by one: all at once would be a long stay in the encoder, where prompts are scored.
            "choices": [msgspec.Raw(_encode(self._whole(choice))) for choice in self._choices],
            "usage": self._usage(),
        }
        # Each prompt has a seed of its own; where there is only one, it is the response's.
        if len(self._job.prompts) == 1:
            response["seed"] = self._choices[0].seed
        if self._job.service_tier is not None:
            response["service_tier"] = self._job.service_tier
        if self._job.return_token_ids and self._kind.is_chat:
            response["prompt_token_ids"] = self._job.prompts[0]
        if self._job.prompt_logprobs is not None and self._kind.is_chat:
            response["prompt_logprobs"] = self._scores(0)
        return _encode(response)

    def _choice(self, prompt: int, sample: int) -> _ChoiceWriter:
        params = self._job.params[prompt]
        echo = self._job.echo[prompt] if self._job.echo else ""
        writer: LogprobWriter | None = None
        if params.logprobs is not None:
            writer = (
                ChatLogprobWriter(self._table)
                if self._kind.is_chat
                else CompletionLogprobWriter(self._table, params.skip_special_tokens, len(echo))
            )
        parsing = self._job.parsing
        name = f"{self.id} {prompt * params.n + sample}"
        segments = Segments(parsing, sample_of(self._job, prompt, self._table, self._tally), name)
        form = MessageForm(parsed=parsing is not None) if self._kind.is_chat else TextForm(echo)
        text_only = writer is None and not self._job.return_token_ids
        plain = text_only and not (self._job.continuous_usage or self._job.obfuscated)
        return _ChoiceWriter(
            prompt * params.n + sample, prompt, segments, form, writer, says_text_only=text_only, plain=plain
        )

    def _end_events_with(self, usage: bytes) -> None:
        self._tail = b"}]" + usage + b"}\n\n"
        # Ends an event without anything special, which nearly all are.
        self._plain_tail = b',"logprobs":null,"finish_reason":null' + self._tail

    def _begin(self, output: RequestOutput) -> None:
        head: dict[str, Any] = {
            "id": self.id,
            "object": self._kind.chunk_object,
            "created": self.created,
            "model": self._model,
        }
        if len(self._job.prompts) == 1:
            head["seed"] = output.seed
        if self._job.service_tier is not None:
            head["service_tier"] = self._job.service_tier
        self._head = b"data: " + _encode(head)[:-1] + b',"choices":['
        for choice in self._choices:
            choice.prefix = self._head + b'{"index":%d' % choice.index

    def _note(self, output: RequestOutput) -> None:
        """Take what an output says of its request."""
        # By prompt, and not by request: another engine computes the same one under another id.
        prompt = self._choices[output.deltas[0].index].prompt
        self._prompt_tokens[prompt], self._cached[prompt] = output.prompt_tokens, output.cached_tokens
        self._dropped[prompt] = output.dropped_tokens
        if output.prompt_logprobs is not None:
            self._prompt_logprobs[prompt] = output.prompt_logprobs
        for delta in output.deltas:
            self._choices[delta.index].seed = output.seed
            self._choices[delta.index].beam = delta.beam

    def _events(self, choice: _ChoiceWriter, part: SampleDelta, gains: Sequence[Gain]) -> list[bytes]:
        """The events of a part of a choice: one for each piece of its answer, the last with all that is new."""
        pieces = choice.form.parts(gains, first=not choice.started, ended=part.ending is not None)
        if not pieces and choice.says_text_only and choice.started and choice.sample.ending is None:
            return []
        *others, last = pieces or [choice.form.nothing]
        events = []
        for piece in others:
            tail = self._tail_of(choice)
            events.append(
                choice.prefix + piece + b',"logprobs":null,"finish_reason":null' + self._opening(choice) + tail
            )
        tail = self._tail_of(choice)
        return [*events, choice.prefix + last + self._rest(choice, part) + tail]

    def _opening(self, choice: _ChoiceWriter) -> bytes:
        """What only the first event of a choice says."""
        if choice.started:
            return b""
        choice.started = True
        opening = b',"seed":' + _encode(choice.seed)
        if self._job.return_token_ids and not self._kind.is_chat:
            opening += b',"prompt_token_ids":' + _encode(self._job.prompts[choice.prompt])
        return opening

    def _tail_of(self, choice: _ChoiceWriter) -> bytes:
        """What ends the choice's next event. A chat's prompt is told beside the choices, as in whole responses."""
        if choice.started or not (self._job.return_token_ids and self._kind.is_chat):
            return self._tail
        return b'}],"prompt_token_ids":' + _encode(self._job.prompts[0]) + self._tail.removeprefix(b"}]")

    def _rest(self, choice: _ChoiceWriter, delta: SampleDelta) -> bytes:
        """What an event says behind its text."""
        echoed = not choice.started and self._echo_logprobs(choice)
        rest = self._opening(choice)
        if self._job.return_token_ids:
            rest += b',"token_ids":' + _encode(delta.token_ids)
        logprobs = None
        if choice.logprob_writer is not None and (delta.logprobs or echoed):
            logprobs = choice.logprob_writer.write(delta.logprobs or ())
        if choice.sample.ending is not None:
            rest += b',"stop_reason":' + _encode(choice.sample.ending.stop_reason)
            if choice.beam is not None:
                rest += b',"beam":' + _encode(_likelihood(choice.beam))
        return b',"logprobs":%b,"finish_reason":%b%b' % (_encode(logprobs), _encode(choice.finish), rest)

    def _whole(self, choice: _ChoiceWriter) -> dict[str, Any]:
        self._echo_logprobs(choice)
        result: dict[str, Any] = {"index": choice.index, **choice.form.whole(choice.segments)}
        writer = choice.logprob_writer
        result["logprobs"] = None if writer is None else writer.write(choice.logprobs)
        ending = choice.sample.ending
        stop_reason = None if ending is None else ending.stop_reason
        result |= {"finish_reason": choice.finish, "stop_reason": stop_reason, "seed": choice.seed}
        if choice.beam is not None:
            result["beam"] = _likelihood(choice.beam)
        if self._job.return_token_ids:
            result["token_ids"] = choice.token_ids
            if not self._kind.is_chat:
                result["prompt_token_ids"] = self._job.prompts[choice.prompt]
        if self._job.prompt_logprobs is not None and not self._kind.is_chat:
            result["prompt_logprobs"] = self._scores(choice.prompt)
        return result

    def _echo_logprobs(self, choice: _ChoiceWriter) -> bool:
        """Whether a choice's log probabilities begin with those of its prompt, which is then given to their writer."""
        job, writer = self._job, choice.logprob_writer
        scores = self._prompt_logprobs.get(choice.prompt)
        if job.echo is None or scores is None or not isinstance(writer, CompletionLogprobWriter):
            return False
        top = job.params[choice.prompt].logprobs or 0
        writer.echo(job.echo[choice.prompt], job.prompts[choice.prompt], scores, top)
        return True

    def _scores(self, prompt: int) -> list[Any] | None:
        """The field `prompt_logprobs` of one prompt."""
        entries, top = self._prompt_logprobs.get(prompt), self._job.prompt_logprobs
        return None if entries is None or top is None else prompt_logprobs(self._table, entries, top)

    def _usage(self) -> dict[str, Any]:
        prompt_tokens = sum(self._prompt_tokens.values())
        return {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": sum(self._cached.values())},
            "completion_tokens_details": {"reasoning_tokens": self._tally.reasoning_tokens},
            **context_usage(self._job.kv_policy, sum(self._dropped.values())),
        }


def _likelihood(beam: BeamScore) -> dict[str, float]:
    return {"cumulative_logprob": beam.cumulative_logprob, "score": beam.score}


def _padded(event: bytes) -> bytes:
    """The event with a field that hides how long its text is."""
    return b'%b,"obfuscation":"%b"}\n\n' % (event[:-3], padding(len(event)).encode())
