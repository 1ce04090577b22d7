"""A process that answers chats and publishes its drafting figures as other servers do:
python -m tests.evaluation.acceptance_server PORT_FILE KIND [KEY], where KIND is vllm, vllm_each, llamacpp,
sglang, tensorrt_llm or silent.

Every answer of the model `drafted` is 8 tokens out of 3 verifications, which took 5 drafted tokens: 3 at depth 1 and 2
at depth 2. The model `plain` drafts nothing and is slower. The text "fail" is refused with an error that contains the
key, and "odd" is answered with HTML. Streams have three texts, and their last chunk has the figures, as with vLLM and
llama.cpp. With more than CAPACITY requests at once, `drafted` takes eight times as long, and more than MOST are
refused. GET /most returns the largest number of concurrent requests so far. While the folder of PORT_FILE has a hold of
answers (tests.workers.holds), the streams from its number on wait.
"""

import json
import select
import sys
import threading
import time
from pathlib import Path
from typing import Any

from tests.tools.local_server import Handler, serve_process
from tests.workers.holds import ANSWERS, wait_while_held

KIND, KEY = sys.argv[2], sys.argv[3] if len(sys.argv) > 3 else ""
TOKENS, DRAFTS, ACCEPTED = 8, 3, (3, 2)
SECONDS = {"drafted": 0.15, "plain": 0.45}
COUNT = {"drafts": 1000, "other": 0}
"""It has drafted for others before."""
LOCK = threading.Lock()
CAPACITY, MOST = 3, 8
RUNNING = {"now": 0, "most": 0, "streams": 0}


class AcceptanceHandler(Handler):
    def do_GET(self) -> None:
        if self.path == "/v1/models":
            owner = KIND.removesuffix("_each")
            self.send_json(200, {"object": "list", "data": [{"id": "drafted", "object": "model", "owned_by": owner}]})
        elif self.path == "/most":
            self.send_json(200, RUNNING)
        elif self.path == "/metrics" and KIND.startswith(("vllm", "llamacpp")):
            self.send(200, metrics().encode(), {"Content-Type": "text/plain; version=0.0.4"})
        else:
            self.send_json(404, {"error": {"message": "nothing here"}})

    def do_POST(self) -> None:
        body = self.read_json()
        text = body["messages"][-1]["content"]
        if KEY and self.headers.get("Authorization") != f"Bearer {KEY}":
            self.send_json(401, {"error": {"message": "wrong key"}})
        elif text == "fail":
            self.send_json(400, {"error": {"message": f"refused, {self.headers.get('Authorization')}"}})
        elif text == "odd":
            self.send(200, b"<html>", {"Content-Type": "text/html"})
        elif body.get("stream"):
            self.stream(body, text)
        else:
            time.sleep(SECONDS[body["model"]])
            self.send_json(200, answer(body, text))

    def stream(self, body: dict[str, Any], text: str) -> None:
        with LOCK:
            RUNNING["now"] += 1
            RUNNING["streams"] = number = RUNNING["streams"] + 1
            RUNNING["most"] = max(RUNNING["most"], running := RUNNING["now"])
        try:
            if running > MOST:
                return self.send_json(429, {"error": {"message": "too many requests"}})
            wait_while_held(Path(sys.argv[1]).parent, ANSWERS, number)
            full = answer(body, text)
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Connection", "close")
            self.end_headers()
            for part in ("you ", "said: ", text):
                slow = 8 if RUNNING["now"] > CAPACITY and body["model"] == "drafted" else 1
                if select.select([self.connection], [], [], SECONDS[body["model"]] / 15 * slow)[0]:
                    return None  # the client has closed the stream
                self.event({"choices": [{"index": 0, "delta": {"content": part}}]})
            if "fail late" in text:
                return self.event({"error": {"message": "out of memory"}})
            figures = {key: full[key] for key in ("usage", "metrics", "timings") if key in full}
            self.event({"choices": [], **figures} if body["stream_options"]["include_usage"] else {"choices": []})
            self.wfile.write(b"data: [DONE]\n\n")
        finally:
            self.close_connection = True
            with LOCK:
                RUNNING["now"] -= 1

    def event(self, value: dict[str, Any]) -> None:
        self.wfile.write(f"data: {json.dumps(value)}\n\n".encode())
        self.wfile.flush()


def answer(body: dict[str, Any], text: str) -> dict[str, Any]:
    drafted = body["model"] == "drafted"
    with LOCK:
        COUNT["drafts"] += DRAFTS * drafted
    choice: dict[str, Any] = {"index": 0, "finish_reason": "stop"}
    choice["message"] = {"role": "assistant", "content": f"you said: {text}"}
    response = {"id": "x", "object": "chat.completion", "created": 1, "model": body["model"], "choices": [choice]}
    response["usage"] = {"prompt_tokens": 3, "completion_tokens": TOKENS, "total_tokens": TOKENS + 3}
    if KIND == "llamacpp":  # its timings count the first token, which no verification gave
        counts = {"draft_n": 9, "draft_n_accepted": sum(ACCEPTED)} if drafted else {}
        response["timings"] = {"predicted_n": TOKENS + 1, **counts}
    if drafted and KIND == "vllm_each":
        counts = {"num_spec_steps": DRAFTS, "num_accepted_draft_tokens": sum(ACCEPTED), "num_draft_tokens": 9}
        response["metrics"] = {"speculative_decoding": {**counts, "acceptance_histogram": [0, 1, 2]}}
    if drafted and KIND == "sglang" and body.get("return_meta_info"):
        choice["meta_info"] = {"completion_tokens": TOKENS, "spec_verify_ct": DRAFTS, "spec_accept_length": 8 / 3}
    if drafted and KIND == "tensorrt_llm":
        choice["avg_decoded_tokens_per_iter"] = TOKENS / DRAFTS
    return response


def metrics() -> str:
    steps = COUNT["drafts"] / DRAFTS
    lines = []
    for name, value in (("drafts", COUNT["drafts"]), ("draft_tokens", steps * 9), ("accepted_tokens", steps * 5)):
        lines += [f"# TYPE vllm:spec_decode_num_{name} counter"]
        lines += [f'vllm:spec_decode_num_{name}_total{{engine="0",model_name="drafted"}} {value}']
    lines += ["# TYPE vllm:spec_decode_num_accepted_tokens_per_pos counter"]
    for position, accepted in enumerate(ACCEPTED):
        label = f'{{engine="0",model_name="drafted",position="{position}"}}'
        lines += [f"vllm:spec_decode_num_accepted_tokens_per_pos_total{label} {steps * accepted}"]
    return ("\n".join(lines) + "\n").replace("vllm:", "llamacpp:" if KIND == "llamacpp" else "vllm:")


if __name__ == "__main__":
    serve_process(AcceptanceHandler)
