"""The jobs page: what the workers do, have done and will do; `?id=` opens one."""

from sqlalchemy.orm import Session

from app.components import job_rows
from app.components.job_panel import JobPanel
from app.components.list_page import Listing, ListPage
from app.components.pieces import page_header
from app.components.text import safe, tag
from speculoos.settings import Settings
from tracking import listing
from tracking.states import FINISHED, JobState
from tracking.tables import Job

SHOWN = {
    "All": (),
    "Active": tuple(s for s in JobState if s not in FINISHED),
    "Done": (JobState.SUCCEEDED,),
    "Failed or cancelled": (JobState.FAILED, JobState.CANCELLED),
}
LIMIT = 200


def table(rows: Session, which: str) -> str:
    """The list of jobs under the filter `which`, newest first."""
    found = listing.jobs(rows, states=SHOWN.get(which, ()), limit=LIMIT)
    waits = {job.id: job_rows.waits_words(rows, job) for job in found if job.state == JobState.QUEUED}
    more = tag("p", safe(f"These are the newest {LIMIT}."), class_="sp-lead") if len(found) == LIMIT else ""
    return job_rows.jobs_table(found, waits, filtered=which != "All") + more


JOBS = Listing("jobs", Job, "job", table, listing.signature, tuple(SHOWN))


def build(settings: Settings) -> None:
    """Wire the page inside the current Blocks."""
    page_header("Jobs", "What the workers do, newest first. A job goes on when you close this page.")
    page = ListPage(settings, JOBS)
    with page.listing():
        pass
    with page.opened():
        panel = JobPanel(settings, page.chosen)
    page.wire(panel)
    panel.wire(*page.again)
