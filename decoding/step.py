"""The trace: one Step per forward of the base model that emitted tokens. Pages show it, evaluation summarizes it.

Plain Python only, so that records can be read without torch.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from speculoos.errors import BadInput

Origin = Literal["draft", "target", "plain"]


@dataclass(frozen=True, slots=True)
class EmittedToken:
    """draft: accepted at `depth` ≥ 1 with `rank` among its siblings; target: the base model's
    own token (bonus token), after the last accepted one."""

    id: int
    origin: Origin
    depth: int = 0
    rank: int = 0


@dataclass(frozen=True, slots=True)
class DraftRecord:
    """The verified tree without its root. parents[i] is the index of node i's parent, -1 for children of the root."""

    tokens: tuple[int, ...] = ()
    parents: tuple[int, ...] = ()
    depths: tuple[int, ...] = ()
    ranks: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    probs: tuple[float, ...] = ()
    """The base model's probability of each node given its parent, with the sampling settings (at temperature 0 without
    them); empty unless `GenerateConfig.probabilities` is set."""


@dataclass(frozen=True, slots=True)
class Step:
    """One verification (or prefill, or plain forward). Tokens are final once yielded. `counted`: whether the step
    counts towards τ (tokens emitted per verification); False for the prefill and for a step truncated by EOS, a stop
    text or the length limit. `finish`: the reason why the generation ended with this step: stop, length or cancelled;
    else None. Times are milliseconds."""

    index: int
    kind: Literal["prefill", "verify", "plain"]
    tokens: tuple[EmittedToken, ...]
    draft_record: DraftRecord = field(default_factory=DraftRecord)
    accepted: tuple[int, ...] = ()  # indices into draft_record, root to leaf
    counted: bool = True
    finish: Literal["stop", "length", "cancelled"] | None = None
    ms_draft: float = 0.0
    ms_verify: float = 0.0
    ms_other: float = 0.0

    @classmethod
    def of_record(cls, record: Mapping[str, Any]) -> "Step":
        """The step of a record (see `record`), without texts. Raises BadInput for an invalid record."""
        try:
            draft, ms = record["draft"], record["ms"]
            tokens = (EmittedToken(t["id"], t["origin"], t["depth"], t["rank"]) for t in record["tokens"])
            lists = [tuple(draft[key]) for key in ("tokens", "parents", "depths", "ranks", "logprobs")]
            lists.append(tuple(draft.get("probs", ())))
            return cls(
                record["index"], record["kind"], tuple(tokens), DraftRecord(*lists), tuple(record["accepted"]),
                record["counted"], record["finish"], ms["draft"], ms["verify"], ms["other"],
            )  # fmt: skip
        except (KeyError, TypeError) as error:
            raise BadInput(f"This is not a step record of a trace ({error!r}).") from None

    def record(self) -> dict[str, Any]:
        """The JSON form in files, database rows, streams and pages; decoding.text fills in `text` and `texts`."""
        d = self.draft_record
        return {
            "index": self.index,
            "kind": self.kind,
            "tokens": [
                {"id": t.id, "text": "", "origin": t.origin, "depth": t.depth, "rank": t.rank} for t in self.tokens
            ],
            "draft": {
                "tokens": list(d.tokens),
                "texts": [],
                "parents": list(d.parents),
                "depths": list(d.depths),
                "ranks": list(d.ranks),
                "logprobs": [round(p, 4) for p in d.logprobs],
                **({"probs": [round(p, 5) for p in d.probs]} if d.probs else {}),
            },
            "accepted": list(self.accepted),
            "counted": self.counted,
            "finish": self.finish,
            "ms": {
                "draft": round(self.ms_draft, 3),
                "verify": round(self.ms_verify, 3),
                "other": round(self.ms_other, 3),
            },
        }
