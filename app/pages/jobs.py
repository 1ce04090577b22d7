"""The Jobs page: list of jobs; `?id=` opens one."""

from sqlalchemy import select
from sqlalchemy.orm import Session

from app.views import job_rows, manage, shell, verdict
from app.views.job_forms import own_kind_forms
from app.views.job_panel import JobPanel, cancel
from app.widgets.bulk import Action, bulk_bar, compare_button, name_field, on_bulk
from app.widgets.elements import QUIET, block, page_header
from app.widgets.list_page import Listing, ListPage
from app.widgets.list_query import ListQuery, filtered_query
from app.widgets.picker import pager
from speculoos.settings import Settings
from tracking import experiments, listing
from tracking.db import writing
from tracking.paging import page
from tracking.states import FINISHED, WAITING, JobState
from tracking.tables import Job

SHOWN = {
    "All": (),
    "Active": tuple(s for s in JobState if s not in FINISHED),
    "Done": (JobState.SUCCEEDED,),
    "Failed or cancelled": (JobState.FAILED, JobState.CANCELLED),
}


BULK = {"cancel": ("Cancel", ""), "delete": ("Delete", "Delete for good?")}
ADD = ("add", "Add to experiment", "Experiment (existing or new)")


def table(session: Session, which: ListQuery, place: str = "") -> str:
    """A page of the jobs that match `which`, newest first by default."""
    query = filtered_query(listing.newest(SHOWN.get(which.which, ())), which)
    shown = page(session, query, place)
    waits = job_rows.waits_of(session, shown.rows)
    listed = job_rows.jobs_table(shown.rows, waits, filtered=which.is_filtered, chosen=True)
    return (
        (bulk_bar(BULK, compare_button() + name_field(*ADD, experiments.names(session))) if shown.rows else "")
        + listed
        + pager("jobs", shown, which)
    )


def row_signature(session: Session, job_id: str) -> str:
    """Changes with the job and with evaluations of its draft, which affect the verdict; while it waits, with any job,
    since its position in the queue may change."""
    row = session.execute(select(Job.state, Job.version).where(Job.id == job_id)).one_or_none()
    if row and row.state in WAITING:
        return listing.signature(session)
    return f"{row} {verdict.signature(session, job_id)}"


JOBS = Listing("jobs", Job, "job", table, listing.signature, tuple(SHOWN), row_signature=row_signature, bulk=True)


def build(settings: Settings) -> None:
    page_header("Jobs", "Jobs of the workers, newest first. They continue when you close this page.")
    shell.tabs("/jobs")
    listed = ListPage(settings, JOBS)
    with listed.listing():
        own_kind_forms(settings)
        message = block(elem_id="jobs-bulk-said")
    with listed.opened():
        panel = JobPanel(settings, listed.chosen)
    listed.wire(panel)
    panel.wire(*listed.again)
    redraw, inputs, outputs = listed.again
    on_bulk(listed.table, actions(settings), message).then(redraw, inputs, outputs, **QUIET)


def actions(settings: Settings) -> dict[str, Action]:
    return {
        "cancel": Action("Asked to stop", lambda job_id: cancel(settings, job_id)),
        "delete": Action("Deleted", lambda job_id: manage.delete(settings, Job, "job", job_id)),
        "add": Action("Added to the experiment", lambda job_id, name: add(settings, job_id, name), named=True),
    }


def add(settings: Settings, job_id: str, name: str) -> None:
    with writing(settings) as session:
        experiments.add_to_experiment(session, job_id, name)
