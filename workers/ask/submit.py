"""Submitting work: the row is committed first, then its id is sent. No torch and no model here; pages call this."""

from dataclasses import replace

from sqlalchemy.orm import Session

from models.methods.recipes import config_for
from speculoos.errors import BadInput, Conflict, NotFound
from speculoos.settings import Settings, load
from tracking import db, jobs, queries, shards
from tracking.names import WORDS, check_name
from tracking.states import FINISHED
from tracking.tables import Base, Dataset, Job
from workers.ask import matrix
from workers.ask.checks import require_settings, require_template, require_tokenizer
from workers.ask.deliver import deliver
from workers.ask.estimates import Estimate, estimate
from workers.ask.hidden_states import check_server
from workers.ask.outputs import OUTPUT, default_name, input_ids, make_output
from workers.ask.publish import publish
from workers.ask.requests import Evaluate, GenerateData, Matrix, Request, Train, Tune, from_json, queue_of

APIS = ("chat", "completions")
VERBS = {"matrix": "Measure"}
"""How a job's name begins where that is not its kind's first word."""


def submit(
    request: Request,
    *,
    name: str = "",
    like: str = "",
    experiment: str | None = None,
    user: str = "",
    settings: Settings | None = None,
) -> Job:
    """Make the job's row and its output row, commit them, and send the id. With a store its inputs go there first.

    `name` is the output's (when empty made up from `like`, or from what goes in); `experiment` a name, made if new;
    `user` who asks, as they call themselves. A job that still makes an input must succeed first. An unreachable broker
    is no error: the row waits.
    Raises BadInput, NotFound or Conflict for names and inputs that cannot be.
    """
    settings = settings or load()
    check_server(settings, request)
    deliver(settings, request)
    guess = reckon(settings, request)
    with db.writing(settings) as session:
        after_id = _check_inputs(session, request)
        experiment_id = queries.ensure_experiment(session, experiment).id if experiment else None
        request, row = make_output(session, request, name, experiment_id, like)
        verb = VERBS.get(request.kind, request.kind.partition("_")[0].capitalize())
        called = row.name if row else check_name(name) if name else default_name(session, request)
        job = jobs.create(
            session,
            kind=request.kind,
            queue=queue_of(request),
            request=request.to_json(),
            name=f"{verb} {called}",
            after_id=after_id,
            experiment_id=experiment_id,
            user=user,
            estimated_seconds=guess.seconds,
            work=guess.work,
        )
        if row:
            row.job_id = job.id
    return send(settings, job)


def submit_training(
    request: Train,
    *,
    measure: bool,
    name: str = "",
    experiment: str | None = None,
    user: str = "",
    settings: Settings | None = None,
) -> list[Job]:
    """Submit the training and, to `measure`, an evaluation of its checkpoint on the built-in questions."""
    common = {"experiment": experiment, "user": user, "settings": settings}
    training = submit(request, name=name, **common)
    if not measure:
        return [training]
    made = Evaluate(base_id=request.base_id, checkpoint_id=training.request["checkpoint_id"])
    return [training, submit(made, **common)]


def request_cancel(job_id: str, settings: Settings | None = None) -> Job:
    """Ask a job to stop; see tracking.jobs.request_cancel."""
    with db.writing(settings or load()) as session:
        return jobs.request_cancel(session, job_id)


def retry(job_id: str, settings: Settings | None = None) -> Job:
    """Queue a failed or cancelled job again, and send its id; see tracking.jobs.retry."""
    settings = settings or load()
    if settings.store:
        with db.reading(settings) as session:
            job = jobs.get(session, job_id)
        deliver(settings, from_json(job.kind, job.request))
    with db.writing(settings) as session:
        job = jobs.retry(session, job_id)
    return send(settings, job)


def clone(job_id: str, *, user: str = "", settings: Settings | None = None) -> Job:
    """A new job with the same request and an output of its own, asked for by `user`."""
    settings = settings or load()
    with db.reading(settings) as session:
        job = jobs.get(session, job_id)
        shards.refuse(session, job)
    request = without_output(from_json(job.kind, job.request))
    return submit(request, experiment=job.experiment_id, user=user, settings=settings)


def without_output(request: Request) -> Request:
    """The request before it was given an output row: what clones and forms start from."""
    return replace(request, **{OUTPUT[type(request)][0]: ""}) if type(request) in OUTPUT else request


def reckon(settings: Settings, request: Request) -> Estimate:
    """Check the inputs and estimate the job, before anything is written: this may read a thousand conversations, and
    the database has one writer. Raises BadInput, NotFound or Conflict as `submit` does."""
    with db.reading(settings) as session:
        _check_inputs(session, request)
        return estimate(session, request, settings.home)


def _check_inputs(session: Session, request: Request) -> str | None:
    """Check that every input is there; the id of the last unfinished job that makes one of them, if any."""
    if isinstance(request, GenerateData):
        check_generation(request)
    if isinstance(request, Train):
        config_for(request.method, request.recipe, request.settings)
    if isinstance(request, Evaluate):
        check_evaluation(request)
    if isinstance(request, Tune):
        matrix.check_numbers([0.0], [1.0], request.limit, request.max_tokens)
    makers = []
    for table, row_id in input_ids(request):
        row = session.get(table, row_id)
        if row is None:
            raise NotFound(f"The {WORDS[table.__tablename__]} {row_id!r} does not exist; it may have been deleted.")
        job = session.get(Job, row.job_id) if row.job_id and row.state == "pending" else None
        if job and job.state not in FINISHED:
            makers.append(job)
        else:
            queries.must_be_ready(row)
    if isinstance(request, Matrix):
        matrix.check(session, request)
    if isinstance(request, GenerateData) and request.base_id:
        require_template(session.get_one(Base, request.base_id), request)
    if isinstance(request, Train):
        base = session.get_one(Base, request.base_id)
        require_settings(base, config_for(request.method, request.recipe, request.settings), request.settings)
        for data in (session.get_one(Dataset, row_id) for row_id in request.dataset_ids):
            if data.state == "ready":
                require_tokenizer(base, data)
    if len({job.id for job in makers}) > 1 and isinstance(request, Train):
        waits = ", ".join(f"“{job.name}”" for job in makers)
        raise Conflict(f"Several of these data sets are still being made ({waits}); start when all but one are ready.")
    return max(makers, key=lambda job: job.created_at).id if makers else None


def check_generation(request: GenerateData) -> None:
    """Raises BadInput for what cannot be asked for together."""
    if not (request.endpoint or request.base_id):
        raise BadInput("Say which model answers: a base model, or the name of an endpoint.")
    if request.temperatures and request.temperature:
        raise BadInput("Say one temperature or several, not both.")
    if request.samples > 1 and _same_twice(request):
        raise BadInput("Several answers to a prompt need temperatures above 0; at 0 they would be the same.")
    if request.api not in APIS:
        raise BadInput(f"api: expected {' or '.join(APIS)}, got {request.api!r}.")
    if request.api == "completions" and not (request.endpoint and request.base_id):
        raise BadInput(
            "Plain completions need an endpoint and the base that it serves: the base's template is rendered here."
        )
    if request.shard_rows and request.max_minutes:
        raise BadInput("Minutes at most are for a generation in one job; leave them out, or the prompts a shard.")


def check_evaluation(request: Evaluate) -> None:
    """Raises BadInput for numbers that cannot be, and for a draft's options where a server drafts."""
    matrix.check_numbers([request.temperature], [request.top_p], request.limit, request.max_tokens)
    if request.endpoint and (request.drafting or request.dtype):
        raise BadInput("A server drafts as it was started; leave tree and precision out, or measure here.")
    if not (request.endpoint or request.base_id):
        raise BadInput("Say what to measure: a base model, or the name of an endpoint.")


def _same_twice(request: GenerateData) -> bool:
    """Whether several answers to one prompt would be made at temperature 0."""
    mix = request.temperatures or (request.temperature,)
    greedy = sum(temperature <= 0 for temperature in mix)
    return greedy > 1 or (greedy == 1 and request.samples > len(mix))


def send(settings: Settings, job: Job) -> Job:
    """Send the job if it may start; one that waits for another is sent when that one ends."""
    with db.reading(settings) as session:
        ready = [j for j in jobs.publishable(session) if j.id == job.id]
    publish(settings, ready)
    with db.reading(settings) as session:
        return jobs.get(session, job.id)
