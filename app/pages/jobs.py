"""The jobs page: what the workers do, have done and will do; `?id=` opens one."""

from sqlalchemy import select
from sqlalchemy.orm import Session

from app.views import job_rows
from app.views.job_panel import JobPanel
from app.widgets.elements import page_header
from app.widgets.list_page import Listing, ListPage
from app.widgets.picker import pager
from speculoos.settings import Settings
from tracking import listing
from tracking.paging import page
from tracking.states import FINISHED, WAITING, JobState
from tracking.tables import Job

SHOWN = {
    "All": (),
    "Active": tuple(s for s in JobState if s not in FINISHED),
    "Done": (JobState.SUCCEEDED,),
    "Failed or cancelled": (JobState.FAILED, JobState.CANCELLED),
}


def table(session: Session, which: str, place: str = "") -> str:
    """A page of the list of jobs under the filter `which`, newest first."""
    shown, queues = page(session, listing.newest(SHOWN.get(which, ())), place), listing.Queues(session)
    waits = {job.id: job_rows.waits_words(queues, job) for job in shown.rows if job.state == JobState.QUEUED}
    return job_rows.jobs_table(shown.rows, waits, filtered=which != "All") + pager("jobs", shown)


def row_signature(session: Session, job_id: str) -> str:
    """Changes when the job does; while it waits, when any job does: its place may."""
    row = session.execute(select(Job.state, Job.version).where(Job.id == job_id)).one_or_none()
    return listing.signature(session) if row and row.state in WAITING else str(row)


JOBS = Listing("jobs", Job, "job", table, listing.signature, tuple(SHOWN), row_signature=row_signature)


def build(settings: Settings) -> None:
    """Wire the page inside the current Blocks."""
    page_header("Jobs", "What the workers do, newest first. A job goes on when you close this page.")
    listed = ListPage(settings, JOBS)
    with listed.listing():
        pass
    with listed.opened():
        panel = JobPanel(settings, listed.chosen)
    listed.wire(panel)
    panel.wire(*listed.again)
