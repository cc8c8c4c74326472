"""Responses of completions and chats, whole or as server-sent events.

Events are put together from bytes: a stream's prefix is encoded once, and a token costs the encoding of its text.
"""

import time
import uuid
from typing import Any

import msgspec

from penstock.core.errors import PenstockError
from penstock.core.plan import TokenLogprobs
from penstock.engine.interface import RequestOutput, SampleDelta
from penstock.server.chat_message import ChatMessage
from penstock.server.errors import OPENAI, ErrorForm, error_body
from penstock.server.logprobs import ChatLogprobs, CompletionLogprobs, LogprobWriter, prompt_logprobs
from penstock.server.resolve import Job
from penstock.text.table import TokenTable

DONE = b"data: [DONE]\n\n"
_encode = msgspec.json.Encoder().encode


class Shape(msgspec.Struct, frozen=True):
    """Where chats and completions differ in their JSON."""

    id_prefix: str
    whole_object: str
    chunk_object: str
    first_text: bytes
    text: bytes
    after_text: bytes
    is_chat: bool


CHAT = Shape(
    id_prefix="chatcmpl-",
    whole_object="chat.completion",
    chunk_object="chat.completion.chunk",
    first_text=b',"delta":{"role":"assistant","content":',
    text=b',"delta":{"content":',
    after_text=b"}",
    is_chat=True,
)
COMPLETION = Shape(
    id_prefix="cmpl-",
    whole_object="text_completion",
    chunk_object="text_completion",
    first_text=b',"text":',
    text=b',"text":',
    after_text=b"",
    is_chat=False,
)


class _Choice:
    """What has been written, or collected, of one sample of one prompt."""

    def __init__(self, index: int, prompt: int, echo: str, logprob_writer: LogprobWriter | None) -> None:
        self.index = index
        self.prompt = prompt
        self.prefix = b""
        self.started = False
        self.text = [echo] if echo else []
        self.token_ids: list[int] = []
        self.logprobs: list[TokenLogprobs] = []
        self.logprob_writer = logprob_writer
        self.seed: int | None = None
        self.finish: str | None = None
        self.stop_reason: int | str | None = None
        # The message that is cut into pieces, where it is; else all text is content.
        self.message: ChatMessage | None = None
        # Nothing more is told of it; `cut`: although the engine goes on with it.
        self.ended = False
        self.cut = False


class ResponseWriter:
    """Writes one response. Outputs of prompt p carry sample indices from p·n on.

    Attributes:
        id: the response's id.
        completion_tokens: tokens of all choices so far.
        errors: how an error before any output is written.
    """

    errors: ErrorForm = OPENAI

    def __init__(self, shape: Shape, job: Job, model: str, table: TokenTable | None) -> None:
        self.id = shape.id_prefix + uuid.uuid4().hex
        self.completion_tokens = 0
        self._shape = shape
        self._job = job
        self._model = model
        self._table = table
        self._created = int(time.time())
        self._cached: dict[int, int] = {}
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
        self._count(output)
        if self._job.continuous_usage:
            self._end_events_with(b',"usage":' + _encode(self._usage()))
        events = b""
        for delta in output.deltas:
            choice = self._choices[delta.index]
            choice.seed = output.seed
            if choice.ended:
                choice.cut = choice.cut and delta.finish_reason is None
            elif choice.message is not None:
                events += self._message_events(choice, choice.message, delta)
            else:
                events += self._event(choice, delta)
        return events

    def end(self) -> bytes:
        """What follows the last output of a stream."""
        if not self._job.include_usage:
            return DONE
        return self._head + b'],"usage":' + _encode(self._usage()) + b"}\n\n" + DONE

    def failed(self, error: PenstockError) -> bytes:
        """What ends a stream that has begun and cannot go on."""
        return b"data: " + error_body(error) + b"\n\n" + DONE

    def add(self, output: RequestOutput) -> None:
        """Collect an output for `body`.

        Raises RowFailed, StepOutOfMemory or EngineUnavailable where a sample has failed.
        """
        self._count(output)
        for delta in output.deltas:
            choice = self._choices[delta.index]
            choice.seed = output.seed
            if choice.ended:
                choice.cut = choice.cut and delta.finish_reason is None
                continue
            delta.check()
            if choice.message is None:
                choice.text.append(delta.text)
            else:
                choice.message.add(delta.text, ended=delta.finish_reason is not None)
            choice.token_ids += delta.token_ids
            choice.logprobs += delta.logprobs or ()
            self._end_choice(choice, delta)

    @property
    def enough(self) -> bool:
        """Whether the response is complete although the engine goes on with some of its choices."""
        return self.cut > 0 and all(choice.ended for choice in self._choices)

    @property
    def cut(self) -> int:
        """How many choices are complete although the engine goes on with them."""
        return sum(choice.cut for choice in self._choices)

    def body(self) -> bytes:
        """The whole response."""
        response: dict[str, Any] = {
            "id": self.id,
            "object": self._shape.whole_object,
            "created": self._created,
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
        if self._job.return_token_ids and self._shape.is_chat:
            response["prompt_token_ids"] = self._job.prompts[0]
        if self._job.prompt_logprobs is not None and self._shape.is_chat:
            response["prompt_logprobs"] = self._scores(0)
        return _encode(response)

    def _choice(self, prompt: int, sample: int) -> _Choice:
        params = self._job.params[prompt]
        echo = self._job.echo[prompt] if self._job.echo else ""
        writer: LogprobWriter | None = None
        if params.logprobs is not None:
            writer = (
                ChatLogprobs(self._table)
                if self._shape.is_chat
                else CompletionLogprobs(self._table, params.skip_special_tokens, len(echo))
            )
        choice = _Choice(prompt * params.n + sample, prompt, echo, writer)
        if self._job.parsing is not None:
            choice.message = ChatMessage(self._job.parsing)
        return choice

    def _end_events_with(self, usage: bytes) -> None:
        self._tail = b"}]" + usage + b"}\n\n"
        # Ends an event without anything special, which nearly all are.
        self._plain_tail = self._shape.after_text + b',"logprobs":null,"finish_reason":null' + self._tail

    def _begin(self, output: RequestOutput) -> None:
        head: dict[str, Any] = {
            "id": self.id,
            "object": self._shape.chunk_object,
            "created": self._created,
            "model": self._model,
        }
        if len(self._job.prompts) == 1:
            head["seed"] = output.seed
        if self._job.service_tier is not None:
            head["service_tier"] = self._job.service_tier
        self._head = b"data: " + _encode(head)[:-1] + b',"choices":['
        for choice in self._choices:
            choice.prefix = self._head + b'{"index":%d' % choice.index

    def _count(self, output: RequestOutput) -> None:
        # By prompt, and not by request: another engine computes the same one under another id.
        prompt = self._choices[output.deltas[0].index].prompt
        self._cached[prompt] = output.cached_tokens
        if output.prompt_logprobs is not None:
            self._prompt_logprobs[prompt] = output.prompt_logprobs
        for delta in output.deltas:
            if not self._choices[delta.index].ended:
                self.completion_tokens += len(delta.token_ids)

    def _event(self, choice: _Choice, delta: SampleDelta) -> bytes:
        text, shape = delta.text, self._shape
        if choice.started and self._is_plain(choice, delta):
            # The common case, and the one that has to be cheap.
            return choice.prefix + shape.text + _encode(text) + self._plain_tail if text else b""
        if delta.finish_reason is not None:
            delta.check()
            self._end_choice(choice, delta)
        opening = shape.text
        if not choice.started:
            opening, text = shape.first_text, "".join(choice.text) + text
        return b"".join(
            (choice.prefix, opening, _encode(text), shape.after_text, self._rest(choice, delta), self._tail)
        )

    def _message_events(self, choice: _Choice, message: ChatMessage, delta: SampleDelta) -> bytes:
        """The events of a chat's choice whose text is cut into pieces: one for each, the last with all that is new."""
        if delta.finish_reason is not None:
            delta.check()
        parts = message.deltas(delta.text, ended=delta.finish_reason is not None)
        self._end_choice(choice, delta)
        events = [choice.prefix, b',"delta":{']
        if choice.started and not choice.ended and self._is_plain(choice, delta):
            return b"".join(b"".join((*events, part, self._plain_tail)) for part in parts)
        *others, last = parts or [b""]
        whole = b""
        for part in others:
            whole += b"".join(
                (*events, part, b'},"logprobs":null,"finish_reason":null', self._opening(choice), self._tail)
            )
        return whole + b"".join((*events, last, b"}", self._rest(choice, delta), self._tail))

    def _is_plain(self, choice: _Choice, delta: SampleDelta) -> bool:
        """Whether an event says nothing beside its text."""
        return delta.finish_reason is None and choice.logprob_writer is None and not self._job.return_token_ids

    def _end_choice(self, choice: _Choice, delta: SampleDelta) -> None:
        """Note that a choice has ended, if it has: the engine says so, or its message is complete."""
        choice.finish, choice.stop_reason = delta.finish_reason, delta.stop_reason
        message = choice.message
        if message is not None and message.done:
            # Whatever came behind it in the same output is no part of the answer.
            choice.cut = choice.finish is None
            choice.finish, choice.stop_reason = "stop", None
        if message is not None and message.has_calls and choice.finish == "stop":
            choice.finish = "tool_calls"
        choice.ended = choice.finish is not None

    def _opening(self, choice: _Choice) -> bytes:
        """What only the first event of a choice says."""
        if choice.started:
            return b""
        choice.started = True
        opening = b',"seed":' + _encode(choice.seed)
        if self._job.return_token_ids:
            opening += b',"prompt_token_ids":' + _encode(self._job.prompts[choice.prompt])
        return opening

    def _rest(self, choice: _Choice, delta: SampleDelta) -> bytes:
        """What an event says behind its text."""
        echoed = not choice.started and self._echo_logprobs(choice)
        rest = self._opening(choice)
        if self._job.return_token_ids:
            rest += b',"token_ids":' + _encode(delta.token_ids)
        logprobs = None
        if choice.logprob_writer is not None and (delta.logprobs or echoed):
            logprobs = choice.logprob_writer.write(delta.logprobs or ())
        if choice.ended:
            rest += b',"stop_reason":' + _encode(choice.stop_reason)
        return b',"logprobs":%b,"finish_reason":%b%b' % (_encode(logprobs), _encode(choice.finish), rest)

    def _whole(self, choice: _Choice) -> dict[str, Any]:
        text = "".join(choice.text)
        self._echo_logprobs(choice)
        result: dict[str, Any] = {"index": choice.index}
        if choice.message is not None:
            result["message"] = choice.message.whole()
        elif self._shape.is_chat:
            result["message"] = {"role": "assistant", "content": text}
        else:
            result["text"] = text
        writer = choice.logprob_writer
        result["logprobs"] = None if writer is None else writer.write(choice.logprobs)
        result |= {"finish_reason": choice.finish, "stop_reason": choice.stop_reason, "seed": choice.seed}
        if self._job.return_token_ids:
            result["token_ids"] = choice.token_ids
            if not self._shape.is_chat:
                result["prompt_token_ids"] = self._job.prompts[choice.prompt]
        if self._job.prompt_logprobs is not None and not self._shape.is_chat:
            result["prompt_logprobs"] = self._scores(choice.prompt)
        return result

    def _echo_logprobs(self, choice: _Choice) -> bool:
        """Whether a choice's log probabilities begin with those of its prompt, which is then given to their writer."""
        job, writer = self._job, choice.logprob_writer
        scores = self._prompt_logprobs.get(choice.prompt)
        if job.echo is None or scores is None or not isinstance(writer, CompletionLogprobs):
            return False
        top = job.params[choice.prompt].logprobs or 0
        writer.echo(job.echo[choice.prompt], job.prompts[choice.prompt], scores, top)
        return True

    def _scores(self, prompt: int) -> list[Any] | None:
        """The field `prompt_logprobs` of one prompt."""
        entries, top = self._prompt_logprobs.get(prompt), self._job.prompt_logprobs
        return None if entries is None or top is None else prompt_logprobs(self._table, entries, top)

    def _usage(self) -> dict[str, Any]:
        prompt_tokens = self._job.prompt_tokens
        return {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": sum(self._cached.values())},
        }
