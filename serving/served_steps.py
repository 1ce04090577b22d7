"""Origins of the tokens of a server's response, from the numbers of accepted tokens that it publishes for each step.

vLLM lists the steps that verified drafted tokens, but not the first step (the prefill, one token) and not those without
drafted tokens (one token each). The end of a response may cut the last step. A streamed chunk has the tokens of one
step or, when the reader was slow, of several.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from evaluation.published import PublishedStep


class Emitted(NamedTuple):
    """A step as it was streamed: its number of tokens and, if tokens were drafted, the server's data on it."""

    tokens: int
    step: PublishedStep | None = None


def emitted_steps(chunks: Sequence[int], steps: Sequence[PublishedStep]) -> list[Emitted] | None:
    """The steps of a response, the prefill first, from the number of tokens of each chunk. None if they do not fit, or
    fit in two ways that differ."""
    candidates = [each for each in (_one_each(chunks, steps), _all_drafted(chunks, steps)) if each]
    return candidates[0] if candidates and all(each == candidates[0] for each in candidates) else None


def _one_each(chunks: Sequence[int], steps: Sequence[PublishedStep]) -> list[Emitted] | None:
    """If every chunk is one step; chunks of one token may be steps without a draft."""
    if not chunks or chunks[0] != 1:
        return None
    emitted, remaining = [Emitted(1)], list(steps)
    for number, tokens in enumerate(chunks[1:], 2):
        is_cut = number == len(chunks) and len(remaining) == 1 and tokens <= remaining[0].accepted
        if remaining and (tokens == remaining[0].accepted + 1 or is_cut):
            emitted.append(Emitted(tokens, remaining.pop(0)))
        elif tokens == 1:
            emitted.append(Emitted(1))
        else:
            return None
    return None if remaining else emitted


def _all_drafted(chunks: Sequence[int], steps: Sequence[PublishedStep]) -> list[Emitted] | None:
    """If every step after the first verified drafted tokens; a chunk may be several steps."""
    emitted, token_count = [Emitted(1), *(Emitted(step.accepted + 1, step) for step in steps)], sum(chunks)
    excess = sum(each.tokens for each in emitted) - token_count
    if not 0 <= excess < emitted[-1].tokens:
        return None
    emitted[-1] = emitted[-1]._replace(tokens=emitted[-1].tokens - excess)
    return emitted if set(_ends(chunks)) <= set(_ends([each.tokens for each in emitted])) else None


def _ends(sizes: Sequence[int]) -> list[int]:
    return [sum(sizes[: n + 1]) for n in range(len(sizes))]


def records_of_steps(chunks: Sequence[dict[str, Any]], steps: Sequence[Emitted]) -> list[dict[str, Any]]:
    """The records of the chunks, divided into steps, with the origin of each token."""
    tokens = [token for chunk in chunks for token in chunk["tokens"]]
    arrivals = dict(zip(_ends([0, *(len(chunk["tokens"]) for chunk in chunks)]), chunks, strict=False))
    records, at, origins = [], 0, []
    for index, (size, step) in enumerate(steps):
        kind = "verify" if step else "plain" if index else "prefill"
        ms = arrivals[at]["ms"]["other"] if at in arrivals else 0.0
        record = chunk_record(index, kind, [], ms, step)
        for position, token in enumerate(tokens[at : at + size]):
            is_draft = step is not None and position < step.accepted
            token = {**token, "origin": "draft" if is_draft else "plain" if kind == "plain" else "target"}
            token["depth"] = position + 1 if is_draft else 0
            origins.append(token["origin"])
            if token["text"]:  # a character of several tokens is the text of the last one
                token |= {"origins": origins} if len(origins) > 1 else {}
                origins = []
            record["tokens"].append(token)
        records.append(record)
        at += size
    records[-1]["finish"] = chunks[-1]["finish"]
    return records


def chunk_record(
    index: int, kind: str, texts: Sequence[str], ms: float, step: PublishedStep | None = None
) -> dict[str, Any]:
    """A record like Step.record() of decoding.step, without the draft, which no server sends. `ms`: since the previous
    record. `served` has the server's numbers for the step."""
    return {
        "index": index,
        "kind": kind,
        "tokens": [{"id": None, "text": text, "origin": "unknown", "depth": 0, "rank": 0} for text in texts],
        "draft": {"tokens": [], "texts": [], "parents": [], "depths": [], "ranks": [], "logprobs": []},
        "accepted": [],
        "counted": False,
        "finish": None,
        "ms": {"draft": 0.0, "verify": 0.0, "other": round(ms, 3)},
        "served": step._asdict() if step else {},
    }


def rates_of_steps(steps: Sequence[PublishedStep]) -> list[float]:
    """Acceptance rate given an accepted parent, by depth, among the steps that drafted a token there."""
    depths = range(1, max(step.drafted for step in steps) + 1)
    tried = [sum(step.accepted >= d - 1 and step.drafted >= d for step in steps) for d in depths]
    accepted = [sum(step.accepted >= d for step in steps) for d in depths]
    return [round(count / parents, 4) for count, parents in zip(accepted, tried, strict=True) if parents]
