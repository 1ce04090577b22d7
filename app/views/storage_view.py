"""HTML of the home folder's disk usage: its parts, the largest rows, leftover files. Pure functions of a survey."""

from collections.abc import Sequence
from datetime import datetime

from app.widgets.elements import empty_state, notice, tiles
from app.widgets.formatting import ago, size
from app.widgets.picker import table
from app.widgets.text import safe, tag
from ops.storage import Leftover, Survey
from speculoos.settings import Settings
from tracking.tables import Preference

KINDS = {"models": "model", "datasets": "data set", "checkpoints": "checkpoint"}
PAGES = {"models": "models", "datasets": "data", "checkpoints": "checkpoints"}
SHOWN = 60
"""Maximum number of rows in the list; the pages of each kind show all."""
SHOWN_LEFTOVERS = 20


def overview(survey: Survey) -> str:
    free = survey.disk_free / survey.disk_total if survey.disk_total else 1.0
    share = f"of {size(survey.disk_total)}"
    return tiles(
        [
            ("Free on the disk", size(survey.disk_free), f"{share} · almost full" if free < 0.05 else share),
            ("Used by the home folder", size(survey.used), f"measured {ago(survey.at)}"),
            ("Training states", size(sum(item.states for item in survey.things)), "part of the checkpoints"),
            ("Leftovers", size(survey.parts["leftovers"]), "files not in use"),
        ]
    )


def parts(survey: Survey, settings: Settings) -> str:
    """Table of the parts of the home folder, largest first, with their retention rules."""
    words = part_words(survey, settings)
    by_size = sorted(survey.parts.items(), key=lambda item: -item[1])
    rows = [[_name(name, words), _bar(bytes_, survey.used), safe(words[name][2])] for name, bytes_ in by_size]
    return table(["Part", "Size", "Retention"], rows, "Parts of the home folder")


def part_words(survey: Survey, settings: Settings) -> dict[str, tuple[str, str, str]]:
    """Part → (title, page, retention rule)."""
    number = {kind: sum(item.kind == kind for item in survey.things) for kind in KINDS}
    rows = survey.counts
    logs = f"{term(settings.keep_logs_days)} after the job's end"
    runs = f"{rows['runs']:,} responses with {rows['run_steps']:,} steps, {term(settings.keep_runs_days)}; "
    copies = f"the last {settings.keep_copies} are" if settings.keep_copies else "all are"
    states = f"states of failed trainings {term(settings.keep_states_days)}"
    return {
        "models": ("Models", "/models", f"{number['models']}; kept until you delete them"),
        "datasets": ("Data sets", "/data", f"{number['datasets']}; kept until you delete them"),
        "checkpoints": ("Checkpoints", "/checkpoints", f"{number['checkpoints']}, with training states; {states}"),
        "logs": ("Log files", "/jobs", logs),
        "uploads": ("Uploads", "/data", term(settings.keep_uploads_days)),
        "exports": ("Downloads", "/checkpoints", term(settings.keep_exports_days) + "; created again on request"),
        "hidden_states": ("Hidden states", "/train", "stored by trainings; kept until you delete them"),
        "trackers": ("Trackers", "/settings", "data for TensorBoard and others; deleted with their jobs"),
        "database": ("Database", "", runs + f"{rows['job_logs']:,} log lines"),
        "backups": ("Automatic backups", "", f"of the database before a migration; {copies} kept"),
        "broker": ("Broker", "", "file of the job queue; stays small"),
        "leftovers": ("Leftovers", "", "not in use; see below"),
    }


def term(days: int) -> str:
    """`kept 90 days`."""
    return f"kept {days} day{'s' if days != 1 else ''}" if days else "kept forever"


def rows_table(survey: Survey) -> str:
    """Table of models, data sets and checkpoints, largest first, with links to their pages."""
    if not survey.things:
        return empty_state("Nothing yet", "This list shows models, data sets and checkpoints with their sizes.")
    by_size = sorted(survey.things, key=lambda item: (item.outside, -item.bytes))
    rows = [
        [
            tag("a", safe(item.name), href=f"/{PAGES[item.kind]}?id={item.id}", class_="sp-row-name"),
            safe(KINDS[item.kind]),
            safe("outside the home folder" if item.outside else size(item.bytes)),
            safe(size(item.states) if item.states else "–"),
        ]
        for item in by_size[:SHOWN]
    ]
    more = f"The {SHOWN} largest of {len(by_size)} are shown." if len(by_size) > SHOWN else ""
    html = table(["Name", "Kind", "Size", "Training states"], rows, "Things", True, {"Kind", "Size", "Training states"})
    return html + (tag("p", safe(more), class_="sp-lead") if more else "")


def leftovers(items: Sequence[Leftover], home: str) -> str:
    if not items:
        return tag("p", "No leftovers: every file in the home folder is in use.", class_="sp-lead")
    rows = [
        [safe(str(item.path).removeprefix(home + "/")), safe(size(item.bytes)), safe(ago(item.changed))]
        for item in items[:SHOWN_LEFTOVERS]
    ]
    more = f"And {len(items) - SHOWN_LEFTOVERS} more." if len(items) > SHOWN_LEFTOVERS else ""
    html = table(["Path", "Size", "Last changed"], rows, "Leftovers", True, {"Size", "Last changed"})
    return html + (tag("p", safe(more), class_="sp-lead") if more else "")


def last_cleanup(row: Preference | None) -> str:
    if row is None:
        return notice("No cleanup yet. The reconciler cleans up within an hour after it starts.", "info")
    removed = row.value.get("removed", {})
    words = ", ".join(f"{part['count']:,} {name}" for name, part in removed.items())
    when = ago(datetime.fromisoformat(row.value["removed_at"])) if row.value.get("removed_at") and removed else ""
    removed_words = f" Last removed {when}: {words}." if words else " Nothing removed so far."
    return notice(f"Last cleanup {ago(row.updated_at)}.{removed_words}", "info")


def _name(name: str, words: dict[str, tuple[str, str, str]]) -> str:
    title, page, _ = words[name]
    return tag("a" if page else "span", safe(title), href=page or None, class_="sp-row-name")


def _bar(bytes_: int, used: int) -> str:
    bar = tag("progress", value=bytes_, max=max(used, 1), aria_hidden="true")
    return tag("div", bar + tag("span", safe(size(bytes_)), class_="sp-size"), class_="sp-progress")
