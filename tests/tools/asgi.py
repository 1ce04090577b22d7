"""Sends single requests to an ASGI application without a server or client library: fast enough for thousands."""

from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

HOST = "127.0.0.1:7860"


@dataclass
class Answer:
    """The response."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes

    def header(self, name: str) -> str:
        return next((value for key, value in self.headers if key == name), "")

    def cookies(self) -> str:
        """The cookies as a browser would send them back."""
        return "; ".join(value.split(";")[0] for key, value in self.headers if key == "set-cookie")


async def ask(
    app: Any, method: str, path: str, body: bytes = b"", kind: str = "application/json", query: str = "", **headers: str
) -> Answer:
    """Send a request and read the whole response; `headers` use underscores (`content_type`)."""
    all_headers = {"host": HOST, "content-type": kind, "content-length": str(len(body)), **headers}
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": quote(path).encode(),
        "query_string": query.encode(),
        "root_path": "",
        "headers": [(key.replace("_", "-").encode(), value.encode()) for key, value in all_headers.items() if value],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 7860),
    }
    messages = [{"type": "http.request", "body": body, "more_body": False}]
    answer = Answer(0, [], b"")

    async def receive() -> dict[str, Any]:
        return messages.pop() if messages else {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            answer.status = message["status"]
            answer.headers = [(key.decode().lower(), value.decode()) for key, value in message.get("headers", [])]
        elif message["type"] == "http.response.body":
            answer.body += message.get("body", b"")

    await app(scope, receive, send)
    return answer


def gradio_app(pages: Any) -> Any:
    """The Gradio application that serves the English pages of the web application `pages`."""
    return pages.routes[-1].app.apps["en"]
