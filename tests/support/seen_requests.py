"""What a server was asked, and with which status it answered."""

from dataclasses import dataclass, field

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send


@dataclass(frozen=True)
class Seen:
    """A request that has been answered. `path` has the query; `answered_with` is the type of the answer's body."""

    method: str
    path: str
    status: int
    answered_with: str


@dataclass
class SeenRequests:
    """An application around another that notes each request when its answer begins."""

    app: ASGIApp
    requests: list[Seen] = field(default_factory=list)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass everything on."""

        async def noting(message: Message) -> None:
            if message["type"] == "http.response.start":
                query = scope["query_string"].decode()
                kind = Headers(raw=message["headers"]).get("content-type", "")
                path = scope["path"] + (f"?{query}" if query else "")
                self.requests.append(Seen(scope["method"], path, message["status"], kind.partition(";")[0]))
            await send(message)

        await self.app(scope, receive, noting)
