"""A process that speaks the OpenAI chat protocol and fails every third request:
python -m tests.corpus.flaky_server PORT_FILE [fail every N-th request, 0 none] [seconds an answer takes] [port].

Failures alternate between 429 and 500. Each answer repeats the last user turn, so that a test can tell rows apart.
A user turn that says "refuse me" gets 400, one that says "take your time" gets its answer after two seconds. One that
ends with a number waits while the folder of PORT_FILE has a hold of answers (tests.workers.holds).
"""

import json
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from tests.workers.holds import ANSWERS, wait_while_held

ARGUMENTS = dict(enumerate(sys.argv))
EVERY, SECONDS = int(ARGUMENTS.get(2, 3)), float(ARGUMENTS.get(3, 0))
COUNT = {"requests": 0, "answers": 0}
LOCK = threading.Lock()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with LOCK:
            COUNT["requests"] += 1
            number = COUNT["requests"]
        text = body["messages"][-1]["content"]
        if self.headers.get("Authorization") != "Bearer sesame-4711":
            self.reply(401, {"error": {"message": f"wrong key {self.headers.get('Authorization')}"}})
        elif EVERY and number % EVERY == 0:
            status = 429 if number % 2 else 500
            self.reply(status, {"error": {"message": "busy", "type": "server_error"}})
        elif text == "refuse me":
            self.reply(400, {"error": {"message": "this prompt is not allowed"}})
        else:
            time.sleep(2 if text == "take your time" else SECONDS)
            if (number := text.rpartition(" ")[2]).isdigit():
                wait_while_held(Path(sys.argv[1]).parent, ANSWERS, int(number))
            self.reply(200, answer(body, text))

    def do_GET(self) -> None:
        self.reply(200, COUNT)

    def reply(self, status: int, value: dict) -> None:
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_args: object) -> None:
        pass


def answer(body: dict, text: str) -> dict:
    COUNT["answers"] += 1
    message = {"role": "assistant", "content": f"you said: {text}"}
    return {
        "id": "x",
        "object": "chat.completion",
        "created": 0,
        "model": body["model"],
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 1, "completion_tokens": 3, "total_tokens": 4},
    }


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", int(ARGUMENTS.get(4, 0))), Handler)
    temporary = Path(sys.argv[1] + ".part")
    temporary.write_text(str(server.server_port))
    temporary.rename(sys.argv[1])
    server.serve_forever()
