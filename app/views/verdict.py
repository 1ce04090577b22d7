"""Verdict on a training: τ, its meaning and the recommended next step with a button. docs/training.md explains the
thresholds."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple
from urllib.parse import urlencode

from sqlalchemy import or_, select
from sqlalchemy.orm import Session

from app.i18n import t
from app.links import chat_link
from app.views.checkpoint_rows import plain_is_faster, sets_of
from app.widgets.elements import Tone, link_button, notice
from app.widgets.text import tag
from models.methods import METHODS
from tracking.evaluations import finite_number
from tracking.tables import Base, Checkpoint, Dataset, Evaluation, Job

BREAK_EVEN_TAU = 1.3
"""Break-even τ: a speculative step costs about 1.3 plain steps."""
GOOD_TAU = 2.0
"""τ of a good draft; the starter's draft reaches it."""
ENOUGH = 2_500
"""Below this number of conversations more data helps most."""
LATE = 0.9
"""A best step in the last tenth of a training means that it was still improving."""
BEST_METHOD = "eagle3"


class TrainingVerdict(NamedTuple):
    """Text, tone, and the next step (URL and button text)."""

    text: str
    tone: Tone
    link: str
    button: str


@dataclass(frozen=True)
class TrainingFacts:
    tau: float | None
    measured: bool
    speedup: float | None = None
    slower: bool = False
    """The whole interval of the speedup is below 1."""
    uncertain: bool = False
    """The interval of the speedup includes values below 1."""
    rows: int = 0
    prompts: int = 0
    """Size of its prompt set, if some of these prompts have no response yet."""
    still_learning: bool = False


def verdict(facts: TrainingFacts, ways: Mapping[str, str]) -> TrainingVerdict:
    """`ways`: next step → its URL, see `next_steps`."""
    if facts.tau is None:
        text = t("No conversations were held out, so its quality is unknown. Evaluate it on questions.")
        return TrainingVerdict(text, "info", ways["evaluate"], t("Evaluate it"))
    if facts.tau >= GOOD_TAU and not facts.slower and not facts.uncertain:
        if facts.speedup is None:
            return TrainingVerdict(_meaning(facts), "info", ways["evaluate"], t("Evaluate it"))
        text = " ".join([_meaning(facts), t("Chat with it, or export it for a server.")])
        return TrainingVerdict(text, "good", ways["chat"], t("Chat with the draft"))
    advice, step, button = _advice(facts, ways)
    tone: Tone = "warn" if facts.measured and (facts.slower or facts.tau < BREAK_EVEN_TAU) else "info"
    return TrainingVerdict(f"{_meaning(facts)} {advice}", tone, ways[step], button)


def _meaning(facts: TrainingFacts) -> str:
    source = t("on questions") if facts.measured else t("estimated on held-out conversations, before any evaluation")
    text = t(
        "τ {tau:.2f} {source}: each pass of the base model generates {tau:.1f} tokens instead of one.",
        tau=facts.tau,
        source=source,
    )
    more = ""
    if facts.speedup is not None:
        slow = t("too slow: ") if facts.slower else ""
        more = t("Measured (batch size 1, local engine): {slow}{n:.2f} × the baseline.", slow=slow, n=facts.speedup)
    elif not facts.measured or facts.tau >= GOOD_TAU:
        more = t("Evaluate it on questions to measure its speed.")
    elif facts.tau < BREAK_EVEN_TAU:
        more = t("That is too low to be faster than the baseline on most machines.")
    else:
        more = t("That is a start; a good draft has {n:.0f} or more.", n=GOOD_TAU)
    return f"{text} {more}".rstrip()


def _advice(facts: TrainingFacts, ways: Mapping[str, str]) -> tuple[str, str, str]:
    """(advice, next step, button text): more data first, then more training, then another method."""
    if 0 < facts.rows < ENOUGH:
        few = t("Too little data: it was trained on {n:,} conversations.", n=facts.rows)
        if facts.prompts and ways["prompts"]:
            advice = t("Generate responses to all {n:,} prompts.", n=facts.prompts)
            return f"{few} {advice}", "prompts", t("Use all prompts")
        advice = t("Import more prompts and generate responses to them.")
        return f"{few} {advice}", "data", t("Import more prompts")
    if facts.still_learning:
        return t("It was still improving when it ended: train it longer."), "longer", t("Train twice as long")
    if ways["method"]:
        best = METHODS[BEST_METHOD].title
        advice = t("The data suffices and the training has converged: {best} has a higher acceptance rate.", best=best)
        return advice, "method", t("Try {best}", best=best)
    return t("Add more responses to prompts like those it will be used for."), "data", t("Add data")


def part(session: Session, job: Job, more: str = "", chat: str = "") -> str:
    """The verdict as HTML for a succeeded training, with its buttons, one to `chat` unless the next step leads there,
    and `more`; "" for other jobs."""
    checkpoint = session.scalar(select(Checkpoint).where(Checkpoint.job_id == job.id, Checkpoint.state == "ready"))
    if job.kind != "train" or job.state != "SUCCEEDED" or checkpoint is None:
        return ""
    row, sets = evaluation_of(session, checkpoint), sets_of(session, checkpoint)
    data = session.get(Dataset, checkpoint.dataset_id or "")
    source = session.get(Dataset, data.source_id or "") if data else None
    prompts = source.rows if source and source.rows > data.rows else 0
    facts = facts_of(job, checkpoint, row, sum(each.rows for each in sets), prompts)
    result = verdict(facts, next_steps(job, session.get_one(Base, checkpoint.base_id), checkpoint, data, sets))
    buttons = link_button(result.button, result.link, main=True, id="verdict-next")
    if row:
        pending = row.state == "pending"
        link = f"/runs?id={row.job_id}" if pending and row.job_id else f"/results?id={row.id}"
        label = t("Open its running evaluation") if pending else t("Open its evaluation")
        buttons += link_button(label, link, id="verdict-evaluation")
    if chat and chat != result.link:
        buttons += link_button(t("Chat with the draft"), chat, id="open-playground")
    html = notice(result.text, result.tone) + tag("div", buttons + more, class_="sp-link-row")
    return tag("section", html, class_="sp-stack", id="verdict", aria_label=t("Verdict"))


def signature(session: Session, job_id: str) -> str:
    """Changes when an evaluation of the job's checkpoint starts or ends."""
    measured = select(Evaluation.id, Evaluation.state).join(Checkpoint, Evaluation.checkpoint_id == Checkpoint.id)
    return str(session.execute(measured.where(Checkpoint.job_id == job_id).order_by(Evaluation.id)).all())


def evaluation_of(session: Session, checkpoint: Checkpoint) -> Evaluation | None:
    """The last evaluation at default settings, finished or running: greedy, own tree, local engine."""
    defaults = (Evaluation.temperature == 0, Evaluation.tree == "", Evaluation.source == "", Evaluation.suite != "")
    mine = select(Evaluation).where(
        Evaluation.checkpoint_id == checkpoint.id, Evaluation.matrix_id.is_(None), *defaults
    )
    usable = mine.where(Evaluation.state != "failed", or_(Evaluation.tau.is_not(None), Evaluation.state == "pending"))
    return session.scalar(usable.order_by(Evaluation.tau.is_(None), Evaluation.created_at.desc()).limit(1))


def facts_of(job: Job, checkpoint: Checkpoint, row: Evaluation | None, rows: int, prompts: int) -> TrainingFacts:
    figures = job.result or {}
    best, step = figures.get("best_step"), figures.get("step")
    still_learning = bool(best and step and best >= LATE * step)
    if row is not None and row.tau is not None:
        slower, uncertain = ((end or 1) < 1 for end in (row.speedup_high, row.speedup_low))
        return TrainingFacts(row.tau, True, row.speedup, slower, uncertain, rows, prompts, still_learning)
    tau = finite_number(figures.get("mean_accepted_length"))
    return TrainingFacts(tau, False, None, plain_is_faster(checkpoint), False, rows, prompts, still_learning)


def next_steps(
    job: Job, base: Base, checkpoint: Checkpoint, data: Dataset | None, sets: list[Dataset]
) -> dict[str, str]:
    """URLs of the possible next steps; "" for those that do not apply."""
    form = {"base": base.id, **({"data": ",".join(data_set.id for data_set in sets)} if sets else {})}
    if job.experiment_id:
        form["experiment"] = job.experiment_id
    return {
        "prompts": f"/data?id={data.source_id}" if data and data.source_id else "",
        "data": f"/data?{urlencode({'base': base.id})}",
        "longer": f"/runs/new?{urlencode({'clone': job.id, 'longer': 2})}",
        "method": "" if checkpoint.method == BEST_METHOD else f"/runs/new?{urlencode({**form, 'method': BEST_METHOD})}",
        "chat": chat_link(base.name, checkpoint.name),
        "evaluate": f"/models/drafts?id={checkpoint.id}",
    }
