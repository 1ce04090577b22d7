"""The loss mask: which tokens of a conversation the base model generated. The best available source is used.

1. `token_ids` and `loss_spans` stored during generation: exact.
2. The chat template's {% generation %} marks.
3. The difference between the conversation rendered up to a turn and including it (for templates without marks, where
   transformers silently returns all zeros).
The end-of-turn token is in the loss, a newline after it is not. When an answer was truncated by a limit (`finish` is
`length`), the template added the end of turn, so it is not in the loss. Does not import torch.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from speculoos.errors import BadInput

Message = dict[str, Any]
Render = Callable[..., Any]  # a chat template applied to messages, with options
OPTIONAL = ("reasoning_content", "tool_calls", "tool_call_id", "name")
"""Optional fields of a message besides role and content."""
ANSWER_FIELDS = ("content", "reasoning_content", "tool_calls")
GENERATION_MARK = re.compile(r"\{%-?\s*generation\b")


@dataclass(frozen=True)
class MaskedTokens:
    """Token ids, their loss mask, and its source: tokens, marks or prefixes."""

    token_ids: list[int]
    mask: list[bool]
    source: str

    @property
    def spans(self) -> list[tuple[int, int]]:
        """Half-open spans of the tokens in the loss."""
        return _runs(self.mask)


def mask_conversation(row: Mapping[str, Any], tokenizer: Any, eos_ids: Iterable[int] = ()) -> MaskedTokens:
    """The row's ids and loss mask. Raises BadInput, without naming the row, when the row is unusable."""
    eos = frozenset(eos_ids) or frozenset({tokenizer.eos_token_id} - {None})
    if row.get("token_ids") and row.get("loss_spans") is not None:
        return _from_spans(row["token_ids"], row["loss_spans"])
    messages, tools, finish = _messages(row), row.get("tools") or None, row.get("finish") or ()
    reasons = [finish] if isinstance(finish, str) else finish
    cut = frozenset(i for i, reason in enumerate(reasons) if reason == "length")  # numbers of truncated answers
    template, render = getattr(tokenizer, "chat_template", None), partial(_apply_template, tokenizer, tools=tools)
    if not template:
        return _from_plain(tokenizer, messages, eos, cut)
    if isinstance(template, str) and GENERATION_MARK.search(template):
        return _from_marks(render, messages, eos, cut)
    return _from_prefixes(tokenizer, render, messages, eos, cut)


def _from_spans(token_ids: Sequence[int], spans: Sequence[Sequence[int]]) -> MaskedTokens:
    mask = [False] * len(token_ids)
    for span in spans:
        if len(span) != 2 or not 0 <= span[0] <= span[1] <= len(token_ids):
            raise BadInput(f"loss_spans: {list(span)} does not lie within the {len(token_ids)} tokens")
        mask[span[0] : span[1]] = [True] * (span[1] - span[0])
    return MaskedTokens([int(i) for i in token_ids], mask, "tokens")


def _from_marks(render: Render, messages: list[Message], eos: frozenset[int], cut: frozenset[int]) -> MaskedTokens:
    """Each span is extended to its end-of-turn token; truncated answers (`cut`) end before it."""
    options = {"tokenize": True, "return_dict": True, "return_assistant_tokens_mask": True}
    out = render(messages, **options)
    ids, marked = list(out["input_ids"]), [bool(m) for m in out["assistant_masks"]]
    mask = [False] * len(ids)
    runs = _runs(marked)
    if cut and len(runs) != sum(m["role"] == "assistant" for m in messages):
        cut = frozenset(range(len(runs)))  # runs cannot be matched to answers
    for number, (start, end) in enumerate(runs):
        if number in cut:
            end = next((i for i in range(start, end) if ids[i] in eos), end)
        elif end < len(ids) and ids[end] in eos and ids[end - 1] not in eos:
            end += 1
        end = _cut_after_eos(ids, start, end, eos)
        mask[start:end] = [True] * (end - start)
    return MaskedTokens(ids, mask, "marks")


def _from_prefixes(
    tokenizer: Any, render: Render, messages: list[Message], eos: frozenset[int], cut: frozenset[int]
) -> MaskedTokens:
    """Mask from rendered texts: an answer is what rendering its turn adds to the rendered prompt; of a truncated answer
    (`cut`), only its content. Turns whose prompt is not a prefix of the whole text (templates that rewrite earlier
    turns) are not in the loss. Nor is an answer that opens the conversation: it has no prompt, and the engine never
    drafts there."""
    text = render(messages, tokenize=False)
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    ids, offsets = list(encoded["input_ids"]), encoded["offset_mapping"]
    mask = [False] * len(ids)
    answers = [turn for turn, message in enumerate(messages) if message["role"] == "assistant"]
    for number, turn in enumerate(answers):
        if not turn:
            continue
        prompt = render(messages[:turn], tokenize=False, add_generation_prompt=True)
        answered = render(messages[: turn + 1], tokenize=False)
        if not (text.startswith(prompt) and text.startswith(answered) and answered.startswith(prompt)):
            continue
        stop = _end_of_content(text, messages[turn], len(prompt)) if number in cut else len(answered)
        answer_tokens = [i for i, (a, b) in enumerate(offsets) if a >= len(prompt) and b <= stop and b > a]
        if answer_tokens:
            end = _cut_after_eos(ids, answer_tokens[0], answer_tokens[-1] + 1, eos)
            mask[answer_tokens[0] : end] = [True] * (end - answer_tokens[0])
    return MaskedTokens(ids, mask, "prefixes")


def _from_plain(tokenizer: Any, messages: list[Message], eos: frozenset[int], cut: frozenset[int]) -> MaskedTokens:
    if [m["role"] for m in messages] != ["user", "assistant"]:
        raise BadInput("the base has no chat template, so a row needs exactly one prompt and one answer")
    prompt = list(tokenizer(messages[0]["content"])["input_ids"])
    if prompt and prompt[-1] in eos:
        prompt.pop()
    answer = list(tokenizer(messages[1]["content"], add_special_tokens=False)["input_ids"])
    answer += [tokenizer.eos_token_id] if tokenizer.eos_token_id is not None and not cut else []
    return MaskedTokens(prompt + answer, [False] * len(prompt) + [True] * len(answer), "prefixes")


def _messages(row: Mapping[str, Any]) -> list[Message]:
    messages = row.get("messages")
    if not isinstance(messages, list) or not all(isinstance(m, dict) for m in messages):
        raise BadInput("no messages")
    if not any(m.get("role") == "assistant" and any(m.get(key) for key in ANSWER_FIELDS) for m in messages):
        raise BadInput("no response to train on")
    return [
        {"role": str(m.get("role")), "content": str(m.get("content") or "")} | {k: m[k] for k in OPTIONAL if m.get(k)}
        for m in messages
    ]


def _apply_template(tokenizer: Any, messages: list[Message], **options: Any) -> Any:
    from jinja2 import TemplateError

    try:
        return tokenizer.apply_chat_template(messages, **options)
    except (TemplateError, TypeError, ValueError, ArithmeticError, LookupError, RecursionError) as error:
        raise BadInput(f"the chat template refuses these messages ({error})") from None


def _end_of_content(text: str, message: Message, start: int) -> int:
    """End of an answer's content in the rendered `text`; `start` itself when the template rewrote the content."""
    content = (message["content"] or str(message.get("reasoning_content", ""))).strip()
    content_start = text.find(content, start)
    return content_start + len(content) if content_start >= 0 else start


def _cut_after_eos(ids: list[int], start: int, end: int, eos: frozenset[int]) -> int:
    """The span's end moved back to just after its last end-of-turn token; unchanged if it has none."""
    last = max((i for i in range(start, end) if ids[i] in eos), default=end - 1)
    return last + 1


def _runs(mask: list[bool]) -> list[tuple[int, int]]:
    edges = [i for i in range(len(mask) + 1) if (i < len(mask) and mask[i]) != (i > 0 and mask[i - 1])]
    return list(zip(edges[::2], edges[1::2], strict=True))
