"""Answers of `/v1/messages`, whole or as Anthropic's events."""

from typing import Any

import msgspec

from penstock.api.anthropic.errors import ANTHROPIC
from penstock.api.anthropic.marks import input_usage
from penstock.api.anthropic.tool_input import whole_members
from penstock.api.job import Job
from penstock.api.kv_policy import context_usage
from penstock.api.segments import AnswerWriter, Gain, Segment
from penstock.core.errors import PenstockError
from penstock.engine.interface import RequestOutput
from penstock.http.error_bodies import ErrorForm
from penstock.text.table import TokenTable

_encode = msgspec.json.Encoder().encode

_STARTS: dict[str, dict[str, Any]] = {
    "text": {"type": "text", "text": "", "citations": None},
    "reasoning": {"type": "thinking", "thinking": "", "signature": ""},
    "call": {"type": "tool_use", "id": "", "name": "", "input": {}},
}
_DELTAS = {
    "text": b'{"type":"text_delta","text":',
    "reasoning": b'{"type":"thinking_delta","thinking":',
    "call": b'{"type":"input_json_delta","partial_json":',
}


class MessagesWriter(AnswerWriter):
    """Writes one message.

    Attributes:
        id: the message's id.
        created: when it began, in seconds of the Unix clock.
        errors: how an error before any output is written.
    """

    errors: ErrorForm = ANTHROPIC

    def __init__(self, job: Job, model: str, table: TokenTable | None) -> None:
        super().__init__(job, table, "msg_")
        self._model = model
        self._started = False
        self._open: Segment | None = None

    def chunk(self, output: RequestOutput) -> bytes:
        """The events of one output; empty where it holds nothing to show. Raises where the sample has failed."""
        gains = self._answer.take(output)
        events = [] if self._started else [_event("message_start", {"message": self._message([], self._usage())})]
        self._started = True
        return b"".join(events + self._gained(gains))

    def end(self) -> bytes:
        """What follows the last output of a stream."""
        events = self._gained(self._answer.end())
        self._close(events)
        delta = {"stop_reason": self._stop_reason(), "stop_sequence": self._stop_sequence()}
        events.append(_event("message_delta", {"delta": delta, "usage": self._usage()}))
        events.append(_event("message_stop", {}))
        return b"".join(events)

    def failed(self, error: PenstockError) -> bytes:
        """What ends a stream that has begun and cannot go on."""
        return self.errors.event(error)

    def body(self) -> bytes:
        """The body of the whole response, as JSON."""
        self._answer.end()
        message = self._message([self._whole(segment) for segment in self._answer.segments], self._usage())
        message["stop_reason"], message["stop_sequence"] = self._stop_reason(), self._stop_sequence()
        return _encode(message)

    def _gained(self, gains: list[Gain]) -> list[bytes]:
        events: list[bytes] = []
        for segment, text in gains:
            if segment is not self._open:
                self._close(events)
                self._open = segment
                start = _STARTS[segment.kind] | self._call_fields(segment)
                events.append(_event("content_block_start", {"index": segment.index, "content_block": start}))
            if text:
                head = b'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d,"delta":'
                events.append(head % segment.index + _DELTAS[segment.kind] + _encode(text) + b"}}\n\n")
        return events

    def _close(self, events: list[bytes]) -> None:
        if self._open is not None:
            if self._open.kind == "reasoning":
                # Nothing is signed, but clients wait for it.
                signature = {"type": "signature_delta", "signature": ""}
                events.append(_event("content_block_delta", {"index": self._open.index, "delta": signature}))
            events.append(_event("content_block_stop", {"index": self._open.index}))
            self._open = None

    def _call_fields(self, segment: Segment) -> dict[str, Any]:
        return {"id": segment.call_id, "name": segment.name} if segment.kind == "call" else {}

    def _whole(self, segment: Segment) -> dict[str, Any]:
        content = _STARTS[segment.kind] | self._call_fields(segment)
        if segment.kind == "call":
            return content | {"input": whole_members(segment.text)}
        return content | {"text" if segment.kind == "text" else "thinking": segment.text}

    def _message(self, content: list[dict[str, Any]], usage: dict[str, Any]) -> dict[str, Any]:
        return {
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": content,
            "stop_reason": None,
            "stop_sequence": None,
            "usage": usage,
        }

    def _stop_reason(self) -> str:
        ending = self._answer.sample.ending
        if ending is not None and ending.reason == "length":
            return "max_tokens"
        if ending is not None and ending.reason == "content_filter":
            return "refusal"
        if self._answer.calls:
            return "tool_use"
        return "end_turn" if self._stop_sequence() is None else "stop_sequence"

    def _stop_sequence(self) -> str | None:
        ending = self._answer.sample.ending
        return ending.stop_reason if ending is not None and isinstance(ending.stop_reason, str) else None

    def _usage(self) -> dict[str, Any]:
        answer, job = self._answer, self._job
        usage = input_usage(answer.prompt_tokens, answer.cached_tokens, job.keep, answer.kept)
        details = {"thinking_tokens": answer.tally.reasoning_tokens}
        usage |= {"output_tokens": self.completion_tokens, "output_tokens_details": details}
        return usage | context_usage(job.kv_policy, answer.dropped_tokens)


def _event(name: str, fields: dict[str, Any]) -> bytes:
    return b"event: " + name.encode() + b"\ndata: " + _encode({"type": name} | fields) + b"\n\n"
