"""Lineage graph built from rows: prompts → data → drafts → evaluations and exports."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from tracking.leaderboard import MEASURED
from tracking.queries import trained_on
from tracking.states import JobState
from tracking.tables import Checkpoint, Dataset, Evaluation, Job

PROMPTS, DATA, DRAFT, RESULTS = range(4)  # columns of the graph; the last one has evaluations and exports
EXPORTS = 500  # number of newest exports that are searched; their requests name the checkpoint
MAX_DEPTH = 8


@dataclass(frozen=True)
class Node:
    """A node: `key` is unique, `column` counts from the left, `note` is a short remark, `link` is its page."""

    key: str
    column: int
    name: str
    note: str
    link: str


@dataclass
class Graph:
    """Nodes by key in order of creation, and edges (input, output)."""

    nodes: dict[str, Node] = field(default_factory=dict)
    edges: list[tuple[str, str]] = field(default_factory=list)

    def add(self, node: Node, of: str | None) -> None:
        self.nodes.setdefault(node.key, node)
        if of and (of, node.key) not in self.edges:
            self.edges.append((of, node.key))


def graph(session: Session, jobs: Sequence[Job]) -> Graph:
    """The outputs and exports of these jobs, with everything they depend on."""
    ids, result = [job.id for job in jobs], Graph()
    exported = {str(job.request.get("checkpoint_id")) for job in jobs if job.kind == "export"}
    own = Checkpoint.job_id.in_(ids) | Checkpoint.id.in_(exported)
    drafts = {row.id: row for row in session.scalars(select(Checkpoint).where(own))}
    parents = _parents(session, drafts)
    read = {row.id: list(trained_on(row)) for row in drafts.values()}
    sets = _sets(session, ids, {row_id for row_ids in read.values() for row_id in row_ids})
    for row in sorted(sets.values(), key=_age):
        result.add(_data(row), row.source_id if row.source_id in sets else None)
    for row in sorted(drafts.values(), key=_age):
        for row_id in [row_id for row_id in read[row.id] if row_id in sets] or [None]:
            result.add(_draft(row), row_id)
        if row.id in parents:
            result.add(_draft(row), parents[row.id])
    for draft_id, count in _evaluations(session, drafts):
        name, link = "1 evaluation" if count == 1 else f"{count} evaluations", f"/evaluations?checkpoint={draft_id}"
        result.add(Node(f"figures {draft_id}", RESULTS, name, "figures", link), draft_id)
    for job in _exports(session, drafts):
        form, draft_id = str(job.request.get("format")), str(job.request.get("checkpoint_id"))
        result.add(Node(f"export {draft_id} {form}", RESULTS, form, "export", f"/jobs?id={job.id}"), draft_id)
    return result


def _data(row: Dataset) -> Node:
    column = PROMPTS if row.kind == "prompts" else DATA
    note = f"{row.rows:,} rows" if row.state == "ready" else row.state
    return Node(row.id, column, row.name, note, f"/data?id={row.id}")


def _draft(row: Checkpoint) -> Node:
    return Node(row.id, DRAFT, row.name, row.method if row.state == "ready" else row.state, f"/checkpoints?id={row.id}")


def _sets(session: Session, jobs: list[str], used: Iterable[str | None]) -> dict[str, Dataset]:
    wanted, sets = Dataset.job_id.in_(jobs) | Dataset.id.in_(set(used)), {}
    for _ in range(MAX_DEPTH):
        sets |= {row.id: row for row in session.scalars(select(Dataset).where(wanted))}
        if not (sources := {row.source_id for row in sets.values() if row.source_id} - set(sets)):
            break
        wanted = Dataset.id.in_(sources)
    return sets


def _parents(session: Session, drafts: dict[str, Checkpoint]) -> dict[str, str]:
    """Ids of the drafts from which training continued, by draft id. Adds these drafts to `drafts`."""
    settings = {row.id: row.config.get("settings") or {} for row in drafts.values()}
    paths = {row_id: str(each["draft_path"]) for row_id, each in settings.items() if each.get("draft_path")}
    rows = session.scalars(select(Checkpoint).where(Checkpoint.path.in_(set(paths.values())))).all() if paths else []
    by_path = {str(row.path): row for row in rows}
    drafts |= {row.id: row for row in rows}
    return {draft_id: by_path[path].id for draft_id, path in paths.items() if path in by_path}


def _evaluations(session: Session, drafts: dict[str, Any]) -> list[tuple[str, int]]:
    query = select(Evaluation.checkpoint_id, func.count()).where(*MEASURED, Evaluation.checkpoint_id.in_(drafts))
    counts = {row_id: count for row_id, count in session.execute(query.group_by(Evaluation.checkpoint_id))}
    return [(draft_id, counts[draft_id]) for draft_id in drafts if draft_id in counts]


def _exports(session: Session, drafts: dict[str, Any]) -> list[Job]:
    query = select(Job).where(Job.kind == "export", Job.state == JobState.SUCCEEDED)
    rows = session.scalars(query.order_by(Job.created_at.desc(), Job.id).limit(EXPORTS))
    return [job for job in rows if job.request.get("checkpoint_id") in drafts]


def _age(row: Any) -> tuple[Any, str]:
    return row.created_at, row.id
