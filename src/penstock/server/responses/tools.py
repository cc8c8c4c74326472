"""Tools of `/v1/responses`: functions of the client, some of them in namespaces, and those of a hosted API."""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from penstock.core.errors import InvalidParameter
from penstock.server.fields import FieldReader, Hint, Refused, Rules
from penstock.server.responses.schema import FunctionTool, NamespaceTool

TOOL_RULES: Rules = {
    "allowed_callers": Refused("tools are called directly only; leave it out.", (["direct"],)),
    "async": Refused("is not supported; leave it out.", (False,)),
    "defer_loading": Hint("All tools are shown to the model at once.", (False,)),
    "output_schema": Hint("Chat templates have no place for it."),
}
# Run by the server of a hosted API. A model that is not shown one answers without it.
HOSTED_TOOLS = frozenset(
    {
        "code_interpreter",
        "computer",
        "computer_use_preview",
        "file_search",
        "image_generation",
        "mcp",
        "tool_search",
        "web_search",
        "web_search_2025_08_26",
        "web_search_preview",
        "web_search_preview_2025_03_11",
    }
)
_KINDS = "only 'function' and 'namespace', tools of the client."


def settle_tools(given: dict[str, Any], reader: FieldReader) -> None:
    """Take out of a body's tools what has no effect; raises InvalidParameter for kinds that are refused."""
    if isinstance(given.get("tools"), list):
        given["tools"] = list(_settled(given["tools"], "tools", reader))
    choice = given.get("tool_choice")
    if isinstance(choice, dict) and isinstance(choice.get("type"), str) and choice["type"] != "function":
        raise InvalidParameter("tool_choice.type", f"{choice['type'][:40]!r} is not supported; only 'function'.")


def _settled(tools: list[Any], path: str, reader: FieldReader) -> Iterator[Any]:
    for index, tool in enumerate(tools):
        place = f"{path}[{index}]"
        kind = tool.get("type") if isinstance(tool, dict) else None
        if isinstance(kind, str) and kind in HOSTED_TOOLS:
            reader.ignore(f"{place}.{kind}")
            continue
        if isinstance(kind, str) and kind not in ("function", "namespace"):
            raise InvalidParameter(f"{place}.type", f"{kind[:40]!r} is not supported; {_KINDS}")
        if isinstance(tool, dict):
            reader.settle(tool, TOOL_RULES, f"{place}.")
            if kind == "namespace" and isinstance(tool.get("tools"), list):
                tool = {**tool, "tools": list(_settled(tool["tools"], f"{place}.tools", reader))}
        yield tool


class ToolNames:
    """What the model calls a request's functions: by their own names, or with the namespace where others have them.

    Attributes:
        functions: all, those of namespaces too, under the names that the model knows.
    """

    def __init__(self, tools: Iterable[FunctionTool | NamespaceTool]) -> None:
        placed: list[tuple[str | None, FunctionTool]] = []
        for tool in tools:
            if isinstance(tool, NamespaceTool):
                placed += [(tool.name, function) for function in tool.tools]
            else:
                placed.append((None, tool))
        times = Counter(function.name for _, function in placed)
        self.functions: dict[str, FunctionTool] = {}
        self._told: dict[str, tuple[str | None, str]] = {}
        for namespace, function in placed:
            plain = namespace is None or times[function.name] == 1
            name = function.name if plain else f"{namespace}__{function.name}"
            if name in self.functions:
                raise InvalidParameter("tools", f"two tools are called {name[:64]!r}; give each a name of its own.")
            self.functions[name] = function
            self._told[name] = (namespace, function.name)

    def known(self, namespace: str | None, name: str) -> str:
        """The name that the model knows a function by; without a namespace, the first that is called so."""
        for known, (place, own) in self._told.items():
            if own == name and namespace in (None, place):
                return known
        return name

    def told(self, known: str) -> dict[str, str]:
        """The fields of an item that say which function was called."""
        namespace, name = self._told.get(known, (None, known))
        return {"name": name} if namespace is None else {"name": name, "namespace": namespace}
