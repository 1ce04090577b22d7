"""Which tokens of a conversation the base wrote itself: the loss mask, from the best source at hand.

1. `token_ids` and `loss_spans` kept while generating: exact.
2. The chat template's {% generation %} marks.
3. The difference between the conversation rendered up to a turn and including it (templates without marks, for which
   transformers returns all zeros without a word).
The end-of-turn token is in the loss, a newline after it is not. Where an answer was cut by a limit (`finish` says
`length`), the end of turn is the template's, not the base's, and stays out. Knows tokenizers, no torch.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from speculoos.errors import BadInput

Message = dict[str, Any]
FURTHER = ("reasoning_content", "tool_calls", "tool_call_id", "name")
"""What a message may hold besides its role and its text."""
SAID = ("content", "reasoning_content", "tool_calls")
SOURCES = ("tokens", "marks", "prefixes")
"""How a mask may be known."""
GENERATION_MARK = re.compile(r"\{%-?\s*generation\b")


@dataclass(frozen=True)
class MaskedTokens:
    """Token ids, whether each is in the loss, and where the mask came from: tokens, marks or prefixes."""

    token_ids: list[int]
    mask: list[bool]
    source: str

    @property
    def spans(self) -> list[tuple[int, int]]:
        """Half-open spans of what is in the loss."""
        return _runs(self.mask)


def mask_conversation(row: Mapping[str, Any], tokenizer: Any, eos_ids: Iterable[int] = ()) -> MaskedTokens:
    """The row's ids and loss mask. Raises BadInput, without naming the row, when the row cannot be used."""
    eos = frozenset(eos_ids) or frozenset({tokenizer.eos_token_id} - {None})
    if row.get("token_ids") and row.get("loss_spans") is not None:
        return from_spans(row["token_ids"], row["loss_spans"])
    messages, cut, tools = _messages(row), cut_answers(row), row.get("tools") or None
    template = getattr(tokenizer, "chat_template", None)
    if not template:
        return from_plain(tokenizer, messages, eos, cut)
    if isinstance(template, str) and GENERATION_MARK.search(template):
        return from_marks(tokenizer, messages, eos, cut, tools)
    return from_prefixes(tokenizer, messages, eos, cut, tools)


def cut_answers(row: Mapping[str, Any]) -> frozenset[int]:
    """Which answers of a row (0 the first) ended because a limit cut them."""
    finish = row.get("finish") or ()
    return frozenset(i for i, how in enumerate([finish] if isinstance(finish, str) else finish) if how == "length")


def from_spans(token_ids: Sequence[int], spans: Sequence[Sequence[int]]) -> MaskedTokens:
    """Mask from half-open [start, end) spans of `token_ids`."""
    mask = [False] * len(token_ids)
    for span in spans:
        if len(span) != 2 or not 0 <= span[0] <= span[1] <= len(token_ids):
            raise BadInput(f"loss_spans: {list(span)} does not lie within the {len(token_ids)} tokens")
        mask[span[0] : span[1]] = [True] * (span[1] - span[0])
    return MaskedTokens([int(i) for i in token_ids], mask, "tokens")


def from_marks(
    tokenizer: Any,
    messages: list[Message],
    eos: frozenset[int],
    cut: frozenset[int] = frozenset(),
    tools: Sequence[Any] | None = None,
) -> MaskedTokens:
    """Mask from the template's own marks, mended so that each span ends with its end-of-turn token, but for answers
    that were `cut`: those end before it."""
    marked_up = {"tokenize": True, "return_dict": True, "return_assistant_tokens_mask": True}
    out = _templated(tokenizer, messages, tools=tools, **marked_up)
    ids, marked = list(out["input_ids"]), [bool(m) for m in out["assistant_masks"]]
    mask = [False] * len(ids)
    runs = _runs(marked)
    if cut and len(runs) != sum(m["role"] == "assistant" for m in messages):
        cut = frozenset(range(len(runs)))  # which run is which answer cannot be told
    for number, (start, end) in enumerate(runs):
        if number in cut:
            end = next((i for i in range(start, end) if ids[i] in eos), end)
        elif end < len(ids) and ids[end] in eos and ids[end - 1] not in eos:
            end += 1
        end = _cut_after_eos(ids, start, end, eos)
        mask[start:end] = [True] * (end - start)
    return MaskedTokens(ids, mask, "marks")


def from_prefixes(
    tokenizer: Any,
    messages: list[Message],
    eos: frozenset[int],
    cut: frozenset[int] = frozenset(),
    tools: Sequence[Any] | None = None,
) -> MaskedTokens:
    """Mask from rendered texts: an answer is what rendering its turn adds to the text that asks for it; of one that
    was `cut` only the words themselves.

    Turns whose asking text is no prefix of the whole (templates that rewrite earlier turns) stay out of the loss. So
    does an answer that opens the conversation: nothing asks for it, and the engine never drafts there.
    """
    text = _render(tokenizer, messages, False, tools)
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    ids, offsets = list(encoded["input_ids"]), encoded["offset_mapping"]
    mask = [False] * len(ids)
    answers = [turn for turn, message in enumerate(messages) if message["role"] == "assistant"]
    for number, turn in enumerate(answers):
        if not turn:
            continue
        prompt = _render(tokenizer, messages[:turn], True, tools)
        answered = _render(tokenizer, messages[: turn + 1], False, tools)
        if not (text.startswith(prompt) and text.startswith(answered) and answered.startswith(prompt)):
            continue
        stop = _end_of_words(text, _words(messages[turn]), len(prompt)) if number in cut else len(answered)
        inside = [i for i, (a, b) in enumerate(offsets) if a >= len(prompt) and b <= stop and b > a]
        if inside:
            end = _cut_after_eos(ids, inside[0], inside[-1] + 1, eos)
            mask[inside[0] : end] = [True] * (end - inside[0])
    return MaskedTokens(ids, mask, "prefixes")


def from_plain(
    tokenizer: Any, messages: list[Message], eos: frozenset[int], cut: frozenset[int] = frozenset()
) -> MaskedTokens:
    """Without a chat template: one text continued by one answer, ended, unless it was `cut`, by the tokenizer's own
    end of text."""
    if [m["role"] for m in messages] != ["user", "assistant"]:
        raise BadInput("the base has no chat template, so a row needs exactly one prompt and one answer")
    prompt = list(tokenizer(messages[0]["content"])["input_ids"])
    if prompt and prompt[-1] in eos:
        prompt.pop()
    answer = list(tokenizer(messages[1]["content"], add_special_tokens=False)["input_ids"])
    answer += [tokenizer.eos_token_id] if tokenizer.eos_token_id is not None and not cut else []
    return MaskedTokens(prompt + answer, [False] * len(prompt) + [True] * len(answer), "prefixes")


def _messages(row: Mapping[str, Any]) -> list[Message]:
    """Role and text of each message, and what else of it a template may write."""
    messages = row.get("messages")
    if not isinstance(messages, list) or not all(isinstance(m, dict) for m in messages):
        raise BadInput("no messages")
    if not any(m.get("role") == "assistant" and any(m.get(key) for key in SAID) for m in messages):
        raise BadInput("no answer to learn from")
    return [
        {"role": str(m.get("role")), "content": str(m.get("content") or "")} | {k: m[k] for k in FURTHER if m.get(k)}
        for m in messages
    ]


def _words(message: Message) -> str:
    """What an answer ends with."""
    return message["content"] or str(message.get("reasoning_content", ""))


def _render(tokenizer: Any, messages: list[Message], ask: bool, tools: Sequence[Any] | None) -> str:
    return _templated(tokenizer, messages, tools=tools, tokenize=False, add_generation_prompt=ask)


def _templated(tokenizer: Any, messages: list[Message], **options: Any) -> Any:
    from jinja2 import TemplateError

    try:
        return tokenizer.apply_chat_template(messages, **options)
    except (
        TemplateError,
        TypeError,
        ValueError,
        ArithmeticError,
        LookupError,
        RecursionError,
    ) as error:  # filters' too
        raise BadInput(f"the chat template refuses these messages ({error})") from None


def _end_of_words(text: str, words: str, start: int) -> int:
    """Where in the rendered `text` the answer `words`, looked for from `start` on, ends; `start` where a template
    rewrote them: then nothing of it can be told from what was put around it."""
    words = words.strip()
    at = text.find(words, start)
    return at + len(words) if at >= 0 else start


def _cut_after_eos(ids: list[int], start: int, end: int, eos: frozenset[int]) -> int:
    """End of the span moved back to just after its last end-of-turn token; unchanged if it has none."""
    last = max((i for i in range(start, end) if ids[i] in eos), default=end - 1)
    return last + 1


def _runs(mask: list[bool]) -> list[tuple[int, int]]:
    """Half-open runs of True."""
    edges = [i for i in range(len(mask) + 1) if (i < len(mask) and mask[i]) != (i > 0 and mask[i - 1])]
    return list(zip(edges[::2], edges[1::2], strict=True))
