"""A local server that returns token ids in the fields of other servers: vLLM, SGLang (current, and before July 2026),
OpenAI (which rejects unknown arguments) and one that ignores the request for ids. Answers repeat the last user turn; a
turn that contains "think" is answered with reasoning first, one that contains "nothing" with an empty text.
"""

from typing import Any

from models.chat import render
from tests.tools.local_server import Handler, serving

THOUGHT = "<think>\nhm, well\n</think>\n\n"


class LabellingServer:
    """Use as a context manager. `form` is the imitated server, `lie` the error in its answers."""

    def __init__(self, tokenizer: Any, form: str, lie: str = ""):
        self.tokenizer, self.form, self.lie = tokenizer, form, lie
        self.eos = tokenizer.convert_tokens_to_ids("<|im_end|>")
        self.bodies: list[dict[str, Any]] = []

    def __enter__(self) -> "LabellingServer":
        self._serving = serving(type("Bound", (LabellingHandler,), {"owner": self}))
        self.url = f"{self._serving.__enter__()}/v1"
        return self

    def __exit__(self, *error: Any) -> None:
        self._serving.__exit__(*error)

    def respond(self, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        self.bodies.append(body)
        if self.form == "openai" and (unknown := {"return_token_ids", "return_meta_info"} & body.keys()):
            message = f"Unrecognized request argument supplied: {min(unknown)}"
            return 400, {"error": {"message": message, "type": "invalid_request_error", "param": None, "code": None}}
        chat = path.endswith("/chat/completions")
        prompt = render(self.tokenizer, body["messages"]) if chat else body["prompt"]
        last = body["messages"][-1]["content"] if chat else self._last_turn(prompt)
        content = "" if "nothing" in last else f"you said: {last}"
        full_text = THOUGHT + content if "think" in last else content
        ids = [*self.tokenizer(full_text, add_special_tokens=False)["input_ids"], self.eos]
        finish = "stop" if len(ids) <= body["max_tokens"] else "length"
        ids = ids[: body["max_tokens"]]
        text = self.tokenizer.decode(ids, skip_special_tokens=True)
        return 200, self._answer(chat, prompt, ids, text, finish, body)

    def _last_turn(self, prompt: list[int]) -> str:
        return self.tokenizer.decode(prompt).rpartition("<|im_start|>user\n")[2].partition("<|im_end|>")[0]

    def _answer(
        self, chat: bool, prompt: list[int], ids: list[int], text: str, finish: str, body: dict[str, Any]
    ) -> dict[str, Any]:
        choice: dict[str, Any] = {"index": 0, "logprobs": None, "finish_reason": finish}
        if chat:
            reasoning, mark, rest = text.partition("</think>")
            fields = {"content": rest.strip(), "reasoning_content": reasoning.removeprefix("<think>").strip()}
            choice["message"] = {"role": "assistant", **(fields if mark else {"content": text}), "tool_calls": []}
        else:
            choice["text"] = text
        usage = {"prompt_tokens": len(prompt), "completion_tokens": len(ids), "total_tokens": len(prompt) + len(ids)}
        kind = "chat.completion" if chat else "text_completion"
        answer = {"id": "x", "object": kind, "created": 1, "model": body["model"], "choices": [choice], "usage": usage}
        ids, prompt = self._apply_lie(ids, prompt)
        if self.form == "vllm" and body.get("return_token_ids"):
            choice["token_ids"] = ids
            (answer if chat else choice)["prompt_token_ids"] = prompt
        if self.form == "sglang" and body.get("return_token_ids"):
            choice |= {"token_ids": ids, "prompt_token_ids": prompt, "matched_stop": self.eos}
        if self.form == "sglang before" and body.get("return_meta_info") and body.get("logprobs"):
            choice["meta_info"] = {
                "output_token_logprobs": [[-0.5, i, None] for i in ids],
                "completion_tokens": len(ids),
            }
            choice |= {"prompt_token_ids": prompt} if body.get("return_prompt_token_ids") else {}
        return answer

    def _apply_lie(self, ids: list[int], prompt: list[int]) -> tuple[list[int], list[int]]:
        if self.lie == "unknown ids":
            return [10**6, *ids[1:]], prompt
        if self.lie == "ids of another text":
            return ids[::-1], prompt
        return ids, prompt[1:] if self.lie == "ids of another prompt" else prompt


class LabellingHandler(Handler):
    owner: LabellingServer

    def do_POST(self) -> None:
        self.send_json(*self.owner.respond(self.path, self.read_json()))
