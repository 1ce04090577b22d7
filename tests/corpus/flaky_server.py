"""A process that speaks the OpenAI chat protocol and fails every third request:
python -m tests.corpus.flaky_server PORT_FILE [fail every N-th request, 0 none] [seconds an answer takes] [port].

Failures alternate between 429 and 500. Each answer repeats the last user turn, so that a test can tell rows apart.
A user turn that says "refuse me" gets 400, one that says "take your time" gets its answer after two seconds. One that
ends with a number waits while the folder of PORT_FILE has a hold of answers (tests.workers.holds).
"""

import sys
import threading
import time
from pathlib import Path

from tests.tools.local_server import Handler, serve_process
from tests.workers.holds import ANSWERS, wait_while_held

ARGUMENTS = dict(enumerate(sys.argv))
EVERY, SECONDS = int(ARGUMENTS.get(2, 3)), float(ARGUMENTS.get(3, 0))
COUNT = {"requests": 0, "answers": 0}
LOCK = threading.Lock()


class FlakyHandler(Handler):
    def do_POST(self) -> None:
        body = self.read_json()
        with LOCK:
            COUNT["requests"] += 1
            number = COUNT["requests"]
        text = body["messages"][-1]["content"]
        if self.headers.get("Authorization") != "Bearer sesame-4711":
            self.send_json(401, {"error": {"message": f"wrong key {self.headers.get('Authorization')}"}})
        elif EVERY and number % EVERY == 0:
            status = 429 if number % 2 else 500
            self.send_json(status, {"error": {"message": "busy", "type": "server_error"}})
        elif text == "refuse me":
            self.send_json(400, {"error": {"message": "this prompt is not allowed"}})
        else:
            time.sleep(2 if text == "take your time" else SECONDS)
            if (number := text.rpartition(" ")[2]).isdigit():
                wait_while_held(Path(sys.argv[1]).parent, ANSWERS, int(number))
            self.send_json(200, answer(body, text))

    def do_GET(self) -> None:
        self.send_json(200, COUNT)


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
    serve_process(FlakyHandler, int(ARGUMENTS.get(4, 0)))
