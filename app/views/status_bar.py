"""Status strip on top of every page: the running job, the processes, GPUs, the disk. Reads rows only."""

import shutil
from operator import itemgetter
from pathlib import Path

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from app.i18n import t
from app.paths import PAGES
from app.views.job_view import ENDLESS, shown_done, time_left
from app.widgets.elements import notice
from app.widgets.formatting import duration, size
from app.widgets.text import safe, tag
from speculoos import resources
from speculoos.errors import SpeculoosError
from speculoos.gpus import Gpu, short_uuid
from speculoos.settings import Settings
from tracking.db import reading
from tracking.processes import FRESH, alive
from tracking.tables import Job
from tracking.workload import heartbeats

LOW_DISK = 2 * 10**9  # free bytes below which the strip warns
EXPECTED = ("web", "worker-gpu", "worker-io", "reconciler", "inference")


def render(settings: Settings) -> str:
    """The whole strip as HTML; shows the error if the database cannot be read."""
    try:
        with reading(settings) as session:
            parts = job_chip(session) + process_dot(session) + gpu_chips(session)
    except SpeculoosError as error:
        parts = tag("span", safe(error), class_="sp-chip sp-bad")
    strip = tag("div", parts + disk_chip(settings.home), class_="sp-strip", role="group", aria_label=t("Workbench"))
    return strip + disk_notice(settings)


def job_chip(session: Session) -> str:
    listed = Job.parent_id.is_(None)
    order = Job.kind.in_(ENDLESS), Job.started_at  # a server, which runs until it is stopped, hides no other job
    running = session.scalar(select(Job).where(Job.state == "RUNNING", listed).order_by(*order).limit(1))
    waiting = session.scalar(select(func.count()).select_from(Job).where(Job.state == "QUEUED", listed)) or 0
    more = [t("{n} waiting", n=waiting)] if waiting else []
    if running is None:
        return tag("a", safe(" · ".join([t("No job is running"), *more])), href="/runs", class_="sp-chip")
    text = " · ".join([running.name, job_progress(running), *more])
    dot = tag("span", "", class_="sp-dot sp-running")
    return tag("a", dot + safe(text), href=f"/runs?id={running.id}", class_="sp-chip")


def job_progress(job: Job) -> str:
    """`42% · 3 min 5 s left`, or less if the total is unknown."""
    if not job.total:
        return job.progress_note or f"{shown_done(job)} {job.unit}".strip()
    last_work = job.progress_note if job.done >= job.total else ""
    return f"{min(shown_done(job) / job.total, 1.0):.0%} · {last_work or time_left(job)}"


def process_dot(session: Session) -> str:
    """A dot and a text; names the process with the oldest heartbeat if that is too old, and those without one. Of
    processes with the same name the latest heartbeat counts."""
    silences = {name: ages[0] for name, ages in sorted(heartbeats(session).items())}
    name, seconds = max(silences.items(), key=itemgetter(1), default=("", 0.0))
    if not silences:
        text, tone = t("no worker has reported yet"), "warn"
    elif seconds >= FRESH.total_seconds():
        text, tone = t("{name} has not reported for {time}", name=name, time=duration(seconds)), "bad"
    else:
        text = t("{n} processes alive", n=len(silences)) if len(silences) > 1 else t("{name} alive", name=name)
        tone = "good"
    if missing := [name for name in EXPECTED if name not in silences]:
        text = " · ".join([text, t("not running: {names}", names=", ".join(missing))])
        tone = "bad" if tone == "bad" else "warn"
    dot = tag("span", "", class_=f"sp-dot sp-{tone}", aria_hidden="true")
    calm = " sp-calm" if tone == "good" else ""
    return tag("a", dot + safe(text), href="/settings", class_=f"sp-chip{calm}", title=", ".join(silences))


def gpu_chips(session: Session) -> str:
    """Each GPU as measured by the workers of its machine: `GPU-5d3b1c2e 87% · 40.1 GB of 80.0 GB · 61 °C`."""
    workers = sorted(alive(session, "worker-gpu"), key=lambda row: row.updated_at)
    measured = {gpu["uuid"]: Gpu(**gpu) for row in workers for gpu in row.value.get("gpus", ())}
    html = ""
    for _, gpu in sorted(measured.items()):
        used, total = size(gpu.memory_used or 0), size(gpu.memory_total)
        values = (
            f"{gpu.utilization:.0%}" if gpu.utilization is not None else "",
            t("{used} of {total}", used=used, total=total) if gpu.memory_used is not None else "",
            f"{gpu.temperature} °C" if gpu.temperature is not None else "",
        )
        text = f"{short_uuid(gpu.uuid)} {' · '.join(filter(None, values))}"
        html += tag("span", safe(text), class_="sp-chip", title=f"{gpu.name} {gpu.uuid}")
    return html


def disk_chip(home: Path) -> str:
    free = shutil.disk_usage(resources.nearest_existing(home)).free
    text = t("Disk {size} free", size=size(free))
    return tag("span", safe(text), class_=f"sp-chip {'sp-bad' if free < LOW_DISK else 'sp-calm'}")


def disk_notice(settings: Settings) -> str:
    """Notice on every page while the disk is full or has too little space for jobs; otherwise ""."""
    if resources.is_disk_full(settings.home):
        sentence = t("The disk that holds {folder} is full; nothing can be stored.", folder=settings.home)
    elif shortage := resources.disk_shortage(settings):
        sentence = t("Jobs pause: {reason}.", reason=shortage.sentence)
    else:
        return ""
    return notice(sentence, "bad", PAGES["storage"], t("Free up space"))
