"""Conversations of other dialects as the messages of a chat."""

from penstock.api.requests import FunctionCall, Message, ToolCall


class _Turn:
    """What the assistant did at one time: it thought, said something, called tools; in this order."""

    def __init__(self) -> None:
        self.reasoning: str | None = None
        self.text: str | None = None
        self.calls: list[ToolCall] = []

    def message(self) -> Message:
        calls = self.calls or None
        return Message(role="assistant", content=self.text, reasoning_content=self.reasoning, tool_calls=calls)


class MessageBuilder:
    """Puts messages together from smaller parts, which come in order."""

    def __init__(self) -> None:
        self._messages: list[Message] = []
        self._turn: _Turn | None = None
        self._called: set[str] = set()

    def say(self, role: str, text: str) -> None:
        """Add a message of another role than the assistant's."""
        self._end_turn()
        self._messages.append(Message(role=role, content=text))

    def answer(self, text: str) -> None:
        """Add a text that the assistant has said."""
        turn = self._turn
        if turn is None or turn.text is not None or turn.calls:
            turn = self._begin_turn()
        turn.text = text

    def think(self, text: str) -> None:
        """The assistant wrote something for itself."""
        turn = self._turn
        if turn is None or turn.reasoning is not None or turn.text is not None or turn.calls:
            turn = self._begin_turn()
        turn.reasoning = text

    def call(self, index: str, name: str, arguments: str) -> None:
        """The assistant called a tool; `arguments` is JSON, or what there is of it."""
        turn = self._turn or self._begin_turn()
        turn.calls.append(ToolCall(FunctionCall(name, arguments), index))
        self._called.add(index)

    def result(self, index: str, text: str) -> bool:
        """The tool of a call gave a result. False, and nothing, where there is no such call."""
        if index not in self._called:
            return False
        self._end_turn()
        self._messages.append(Message(role="tool", content=text, tool_call_id=index))
        return True

    def messages(self) -> list[Message]:
        """The messages of all that was added."""
        self._end_turn()
        return self._messages

    def _begin_turn(self) -> _Turn:
        self._end_turn()
        self._turn = _Turn()
        return self._turn

    def _end_turn(self) -> None:
        if self._turn is not None:
            self._messages.append(self._turn.message())
            self._turn = None
