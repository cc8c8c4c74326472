"""Responses of `/v1/responses`, whole or as typed events."""

import time
import uuid
from collections.abc import Callable
from typing import Any

import msgspec

from penstock.api.job import Job
from penstock.api.kv_policy import context_usage
from penstock.api.obfuscation import padding
from penstock.api.responses.tools import ToolNames
from penstock.api.segments import AnswerWriter, Gain, Segment
from penstock.core.errors import PenstockError
from penstock.engine.interface import RequestOutput
from penstock.http.error_bodies import PLAIN, ErrorForm
from penstock.text.table import TokenTable

_encode = msgspec.json.Encoder().encode

_ITEM_PREFIXES = {"text": "msg", "reasoning": "rs", "call": "fc"}
_PART_TYPES = {"text": "output_text", "reasoning": "reasoning_text"}
# What the events of an item's text are called.
_TEXT_EVENTS = {
    "text": "response.output_text",
    "reasoning": "response.reasoning_text",
    "call": "response.function_call_arguments",
}
# By what their answers ended with.
_INCOMPLETE: dict[str, str] = {"length": "max_output_tokens", "content_filter": "content_filter"}
_LAST_EVENTS = {
    "completed": "response.completed",
    "incomplete": "response.incomplete",
    "cancelled": "response.incomplete",
    "failed": "response.failed",
}


class ResponsesWriter(AnswerWriter):
    """Writes one response.

    Attributes:
        id: the response's id.
        created: when it began, in seconds of the Unix clock.
        ended: nothing changes any more, and `keep` was called.
        errors: how an error before any output is written.
    """

    errors: ErrorForm = PLAIN

    def __init__(
        self,
        job: Job,
        model: str,
        table: TokenTable | None,
        told_back: dict[str, Any],
        names: ToolNames,
        keep: Callable[[dict[str, Any]], None] | None = None,
    ) -> None:
        """`told_back` are the fields that say what was asked; `keep` is called with the response when it has ended."""
        super().__init__(job, table, "resp_")
        self.ended = False
        self._model = model
        self._told_back = told_back
        self._names = names
        self._keep = keep
        self._ids: list[str] = []
        self._sequence = 0
        self._gone_on = False
        self._open: Segment | None = None
        self._status = "in_progress"
        self._cancelled = False
        self._error: PenstockError | None = None

    def chunk(self, output: RequestOutput) -> bytes:
        """The events of one output; empty where it holds nothing to show. Raises where the sample has failed."""
        gains = self._answer.take(output)
        events: list[bytes] = []
        self._begin(events)
        self._gained(events, gains)
        begun = self._job.begun
        if begun is not None and not self._gone_on:
            # Events are numbered on from those that the client has got of another server.
            self._gone_on, self._sequence = True, max(self._sequence, begun.events)
        return b"".join(events)

    def end(self) -> bytes:
        """What follows the last output of a stream."""
        events: list[bytes] = []
        self._begin(events)
        self._gained(events, self._answer.end())
        response = self._ended()
        self._close(events, last=True)
        events.append(self._event(_LAST_EVENTS[self._status], response=response))
        return b"".join(events)

    def failed(self, error: PenstockError) -> bytes:
        """What ends a stream that has begun and cannot go on."""
        self._error = error
        return self.end()

    def body(self) -> bytes:
        """The body of the whole response, as JSON."""
        self._answer.end()
        return _encode(self._ended())

    def cancel(self) -> None:
        """Say that the response was cancelled: no more outputs come."""
        self._cancelled = True
        self._status = "cancelled"

    def response(self) -> dict[str, Any]:
        """The response as it is now."""
        params, ended = self._job.params[0], self._status != "in_progress"
        segments = self._answer.segments
        return {
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "status": self._status,
            "completed_at": int(time.time()) if self._status == "completed" else None,
            "error": None if self._error is None else _error(self._error),
            "incomplete_details": {"reason": self._why_incomplete} if self._status == "incomplete" else None,
            "model": self._model,
            "output": [self._item(segment, self._item_status(segment)) for segment in segments],
            "temperature": params.temperature,
            "top_p": params.top_p,
            "seed": self._answer.seed,
            "usage": self._usage() if ended else None,
            **self._told_back,
        }

    @property
    def _why_incomplete(self) -> str:
        ending = self._answer.sample.ending
        return "max_output_tokens" if ending is None else _INCOMPLETE[ending.reason]

    def _ended(self) -> dict[str, Any]:
        """The response that has ended, which is kept."""
        if self._error is not None:
            self._status = "failed"
        elif not self._cancelled:
            ending = self._answer.sample.ending
            self._status = "incomplete" if ending is not None and ending.reason in _INCOMPLETE else "completed"
        response = self.response()
        self.ended = True
        if self._keep is not None:
            self._keep(response)
        return response

    def _begin(self, events: list[bytes]) -> None:
        if self._sequence == 0:
            # As it is before any output, whatever has come with the first one.
            response = self.response() | {"status": "in_progress", "output": [], "usage": None, "error": None}
            events.append(self._event("response.created", response=response))
            events.append(self._event("response.in_progress", response=response))

    def _gained(self, events: list[bytes], gains: list[Gain]) -> None:
        for segment, text in gains:
            if segment is not self._open:
                self._close(events)
                self._open_item(events, segment)
            if text:
                hidden = {"obfuscation": padding(len(_encode(text)))} if self._job.obfuscated else {}
                events.append(self._text_event(segment, "delta", delta=text, **hidden))

    def _open_item(self, events: list[bytes], segment: Segment) -> None:
        self._open = segment
        nothing: dict[str, Any] = {"arguments": ""} if segment.kind == "call" else {"content": []}
        item = self._item(segment, "in_progress") | nothing
        events.append(self._event("response.output_item.added", output_index=segment.index, item=item))
        if segment.kind != "call":
            events.append(self._part_event(segment, "added", ""))

    def _close(self, events: list[bytes], *, last: bool = False) -> None:
        segment, self._open = self._open, None
        if segment is None:
            return
        whole = {"arguments" if segment.kind == "call" else "text": segment.text}
        events.append(self._text_event(segment, "done", **whole))
        if segment.kind != "call":
            events.append(self._part_event(segment, "done", segment.text))
        item = self._item(segment, self._item_status(segment) if last else "completed")
        events.append(self._event("response.output_item.done", output_index=segment.index, item=item))

    def _text_event(self, segment: Segment, event: str, **fields: Any) -> bytes:
        if segment.kind != "call":
            fields["content_index"] = 0
        if segment.kind == "text":
            fields["logprobs"] = []
        item_id = self._id_of(segment)
        return self._event(
            f"{_TEXT_EVENTS[segment.kind]}.{event}", item_id=item_id, output_index=segment.index, **fields
        )

    def _part_event(self, segment: Segment, event: str, text: str) -> bytes:
        place = {"item_id": self._id_of(segment), "output_index": segment.index, "content_index": 0}
        return self._event(f"response.content_part.{event}", **place, part=_part(segment, text))

    def _event(self, name: str, **fields: Any) -> bytes:
        data = _encode({"type": name, "sequence_number": self._sequence} | fields)
        self._sequence += 1
        return b"event: " + name.encode() + b"\ndata: " + data + b"\n\n"

    def _item(self, segment: Segment, status: str) -> dict[str, Any]:
        item_id = self._id_of(segment)
        if segment.kind == "call":
            call = {"call_id": segment.call_id, **self._names.told(segment.name), "arguments": segment.text}
            return {"type": "function_call", "id": item_id, "status": status, **call}
        content = [_part(segment, segment.text)]
        if segment.kind == "reasoning":
            return {"type": "reasoning", "id": item_id, "status": status, "summary": [], "content": content}
        return {"type": "message", "id": item_id, "status": status, "role": "assistant", "content": content}

    def _item_status(self, segment: Segment) -> str:
        """Only the last item can be cut off; a call also by a stop string in its arguments."""
        is_whole = self._status == "completed" and (segment.kind != "call" or self._answer.calls_whole)
        cut = not is_whole and segment is self._answer.segments[-1]
        return "completed" if not cut else "in_progress" if self._status == "in_progress" else "incomplete"

    def _id_of(self, segment: Segment) -> str:
        while len(self._ids) <= segment.index:
            prefix = _ITEM_PREFIXES[self._answer.segments[len(self._ids)].kind]
            # Another server that goes on with the response gives the same.
            drawn = uuid.uuid5(uuid.NAMESPACE_OID, f"{self.id} {len(self._ids)}")
            self._ids.append(f"{prefix}_{drawn.hex}")
        return self._ids[segment.index]

    def _usage(self) -> dict[str, Any]:
        prompt_tokens = self._answer.prompt_tokens
        return {
            "input_tokens": prompt_tokens,
            "input_tokens_details": {"cached_tokens": self._answer.cached_tokens, "cache_write_tokens": 0},
            "output_tokens": self.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": self._answer.tally.reasoning_tokens},
            "total_tokens": prompt_tokens + self.completion_tokens,
            **context_usage(self._job.kv_policy, self._answer.dropped_tokens),
        }


def _part(segment: Segment, text: str) -> dict[str, Any]:
    part: dict[str, Any] = {"type": _PART_TYPES[segment.kind], "text": text}
    return part | {"annotations": [], "logprobs": []} if segment.kind == "text" else part


def _error(error: PenstockError) -> dict[str, str]:
    return {"code": "server_error" if error.http_status >= 500 else "invalid_prompt", "message": error.message}
