"""What a training came to, in words: τ, what that means, what to do next and the button for it. docs/training.md has
the reasons of the thresholds."""

from dataclasses import dataclass
from urllib.parse import urlencode

from sqlalchemy import or_, select
from sqlalchemy.orm import Session

from app.links import model_link
from app.views.checkpoint_rows import plain_is_faster, sets_of
from app.widgets.elements import Tone, link_button, notice
from app.widgets.text import tag
from models.methods import METHODS
from tracking.evaluations import number
from tracking.tables import Base, Checkpoint, Dataset, Evaluation, Job
from workers.jobs.extend import prompts_left

PAYS = 1.3
"""τ that a drafting step must bring to be as fast as plain decoding: it costs about 1.3 plain steps."""
GOOD = 2.0
"""τ of a head that is worth keeping: the starter's own reached it."""
ENOUGH = 2_500
"""Conversations below which further ones bring most."""
MORE = 2_000
"""The least further answers that are worth asking for."""
LATE = 0.9
"""A best step in the last tenth of a training says that it was still learning."""
BEST_METHOD = "eagle3"


@dataclass(frozen=True)
class EvaluationVerdict:
    """A sentence or two, the way on (address and the button's words), and how good that is."""

    words: str
    tone: Tone
    link: str = ""
    button: str = ""


@dataclass(frozen=True)
class Trained:
    """What is known of a training that ended: τ and where it is from, its data, when it was at its best."""

    tau: float | None
    measured: bool
    speedup: float | None = None
    slower: bool = False
    """The whole interval of the speedup lies below 1."""
    rows: int = 0
    left: int | None = None
    """Prompts of its data's set that are not answered yet; None where its data cannot be extended."""
    still_learning: bool = False


@dataclass(frozen=True)
class Ways:
    """Addresses that a verdict may lead to."""

    extend: str = ""
    data: str = "/data"
    longer: str = ""
    method: str = ""
    chat: str = ""
    evaluate: str = ""


def verdict(known: Trained, ways: Ways) -> EvaluationVerdict:
    """The words for what is known; pure."""
    if known.tau is None:
        told = "No conversation was held out, so nothing says how well it drafts. Measure it on questions."
        return EvaluationVerdict(told, "info", ways.evaluate, "Evaluate it")
    if known.tau >= GOOD and not known.slower:
        return EvaluationVerdict(
            _meaning(known) + " Chat with it, or take it to a server.", "good", ways.chat, "Try it"
        )
    advice, link, button = _advice(known, ways)
    tone: Tone = "warn" if known.measured and (known.slower or known.tau < PAYS) else "info"
    return EvaluationVerdict(f"{_meaning(known)} {advice}", tone, link, button)


def _meaning(known: Trained) -> str:
    """τ, where it is from, and what it means."""
    source = "on questions" if known.measured else "estimated on held-out conversations, before any evaluation"
    each = f"τ {known.tau:.2f} {source}: each pass of the base gives {known.tau:.1f} tokens instead of one."
    if known.speedup is not None:
        slow = "too slow: " if known.slower else ""
        return f"{each} Measured here, that is {slow}{known.speedup:.2f} × the speed of plain decoding."
    if not known.measured:
        return f"{each} Evaluate it on questions to measure its speed."
    if known.tau < PAYS:
        return f"{each} That is too little: a drafting step costs about {PAYS} plain ones."
    return each if known.tau >= GOOD else f"{each} That is a beginning; {GOOD:.0f} or more is a good draft."


def _advice(known: Trained, ways: Ways) -> tuple[str, str, str]:
    """The next step: first more data, then more training, then another method."""
    if known.rows and known.rows < ENOUGH:
        return _more_data(known, ways)
    if known.still_learning and ways.longer:
        return "It was still getting better when it ended: train it longer.", ways.longer, "Train twice as long"
    if ways.method:
        best = METHODS[BEST_METHOD].title
        return f"The data are enough and it had learned what it could: {best} accepts more.", ways.method, f"Try {best}"
    return "More answers, of the kind that people will ask for, are what is left to try.", ways.data, "Add data"


def _more_data(known: Trained, ways: Ways) -> tuple[str, str, str]:
    few = f"Too little data: it learned from {known.rows:,} conversations."
    if known.left and ways.extend:
        count = min(further(known.rows), known.left)
        return f"{few} Generate {count:,} more.", ways.extend, f"Generate {count:,} more"
    return f"{few} Import more prompts and let the base answer them.", ways.data, "Import more prompts"


def further(rows: int) -> int:
    """How many answers more are worth their time: as many again, and no fewer than MORE."""
    return max(rows, MORE)


def part(session: Session, job: Job) -> str:
    """What stands on the page of a training that succeeded; "" on others'."""
    checkpoint = session.scalar(select(Checkpoint).where(Checkpoint.job_id == job.id, Checkpoint.state == "ready"))
    if job.kind != "train" or job.state != "SUCCEEDED" or checkpoint is None:
        return ""
    row = evaluation_of(session, checkpoint)
    known, ways = trained(session, job, checkpoint, row), ways_of(session, job, checkpoint)
    said = verdict(known, ways)
    button = link_button(said.button, said.link, main=True, id="verdict-next") if said.link else ""
    words = notice(said.words, said.tone)
    row_of_links = tag("div", button + _evaluation_link(row), class_="sp-link-row")
    return tag("section", words + row_of_links, class_="sp-stack", id="verdict", aria_label="What came of it")


def signature(session: Session, job_id: str) -> str:
    """Changes when something measures what this job trained, and when that ends."""
    measured = select(Evaluation.id, Evaluation.state).join(Checkpoint, Evaluation.checkpoint_id == Checkpoint.id)
    return str(session.execute(measured.where(Checkpoint.job_id == job_id).order_by(Evaluation.id)).all())


def evaluation_of(session: Session, checkpoint: Checkpoint) -> Evaluation | None:
    """The last evaluation of how the checkpoint is used, made or being made: greedy, own tree, this engine."""
    usual = (Evaluation.temperature == 0, Evaluation.tree == "", Evaluation.source == "", Evaluation.suite != "")
    mine = select(Evaluation).where(Evaluation.checkpoint_id == checkpoint.id, Evaluation.matrix_id.is_(None), *usual)
    told = mine.where(Evaluation.state != "failed", or_(Evaluation.tau.is_not(None), Evaluation.state == "pending"))
    return session.scalar(told.order_by(Evaluation.tau.is_(None), Evaluation.created_at.desc()).limit(1))


def trained(session: Session, job: Job, checkpoint: Checkpoint, row: Evaluation | None) -> Trained:
    """What rows say."""
    figures = job.result or {}
    data = session.get(Dataset, checkpoint.dataset_id or "")
    best, step = figures.get("best_step"), figures.get("step")
    measured = row is not None and row.tau is not None
    return Trained(
        tau=row.tau if measured else number(figures.get("mean_accepted_length")),
        measured=measured,
        speedup=row.speedup if measured else None,
        slower=bool(row.speedup_high is not None and row.speedup_high < 1) if measured else plain_is_faster(checkpoint),
        rows=sum(each.rows for each in sets_of(session, checkpoint)),
        left=prompts_left(session, data) if data else None,
        still_learning=bool(best and step and best >= LATE * step),
    )


def ways_of(session: Session, job: Job, checkpoint: Checkpoint) -> Ways:
    """Where a verdict on this training may lead."""
    data = session.get(Dataset, checkpoint.dataset_id or "")
    base = session.get_one(Base, checkpoint.base_id)
    sets = sets_of(session, checkpoint)
    own = {"base": base.id, **({"data": ",".join(each.id for each in sets)} if sets else {})}
    if job.experiment_id:
        own["experiment"] = job.experiment_id
    more = further(sum(each.rows for each in sets))
    return Ways(
        extend=f"/data?{urlencode({'id': data.id, 'more': more})}" if data else "",
        data=f"/data?{urlencode({'base': base.id})}",
        longer=f"/train?{urlencode({'clone': job.id, 'longer': 2})}",
        method="" if checkpoint.method == BEST_METHOD else f"/train?{urlencode({**own, 'method': BEST_METHOD})}",
        chat=model_link("playground", base.name, checkpoint.name),
        evaluate=f"/checkpoints?id={checkpoint.id}",
    )


def _evaluation_link(row: Evaluation | None) -> str:
    if row is None:
        return ""
    waits = row.state == "pending"
    link = f"/jobs?id={row.job_id}" if waits and row.job_id else f"/evaluations?id={row.id}"
    words = "Its evaluation is under way" if waits else "Its evaluation"
    return link_button(words, link, id="verdict-evaluation")
