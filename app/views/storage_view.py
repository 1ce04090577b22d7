"""What the home costs, as HTML: the parts, the largest things, what no row names. Pure functions over a survey."""

from collections.abc import Sequence
from datetime import datetime

from app.widgets.elements import detail_head, empty_state, facts, notice, tiles
from app.widgets.formatting import ago, size
from app.widgets.picker import pick, table
from app.widgets.text import safe, tag
from ops.storage import Leftover, StorageItem, Survey
from speculoos.settings import Settings
from tracking.tables import Preference

KINDS = {"models": "model", "datasets": "data set", "checkpoints": "checkpoint"}
SHOWN = 60
"""Things in the list; the rest is on the pages of their kind."""
SHOWN_LEFTOVERS = 20


def overview(survey: Survey) -> str:
    """The disk and the home in figures."""
    free = survey.disk_free / survey.disk_total if survey.disk_total else 1.0
    share = f"of {size(survey.disk_total)}"
    return tiles(
        [
            ("Free on the disk", size(survey.disk_free), f"{share} · little is left" if free < 0.05 else share),
            ("Used by this home", size(survey.used), f"counted {ago(survey.at)}"),
            ("Training states", size(sum(t.states for t in survey.things)), "part of the checkpoints"),
            ("Leftovers", size(survey.parts["leftovers"]), "files that no row names"),
        ]
    )


def parts(survey: Survey, settings: Settings) -> str:
    """Each part of the home, the largest first, with what keeps it small."""
    words = part_words(survey, settings)
    by_size = sorted(survey.parts.items(), key=lambda item: -item[1])
    rows = [[_name(name, words), _bar(bytes_, survey.used), safe(words[name][2])] for name, bytes_ in by_size]
    return table(["What", "Size", "What keeps it in order"], rows, "Parts of the home")


def part_words(survey: Survey, settings: Settings) -> dict[str, tuple[str, str, str]]:
    """(title, page, what keeps it in order) of each part."""
    number = {kind: sum(thing.kind == kind for thing in survey.things) for kind in KINDS}
    rows = survey.counts
    logs = f"{term(settings.keep_logs_days)} after a job's end"
    logs += f", {settings.keep_logs_mb:,} MB at most" if settings.keep_logs_mb else ""
    runs = f"{rows['runs']:,} turns and columns with {rows['run_steps']:,} steps, {term(settings.keep_runs_days)}; "
    copies = f"the last {settings.keep_copies} are" if settings.keep_copies else "all are"
    states = f"states of failed trainings {term(settings.keep_states_days)}"
    return {
        "models": ("Models", "/models", f"{number['models']}; they stay until you delete them"),
        "datasets": ("Data sets", "/data", f"{number['datasets']}; they stay until you delete them"),
        "checkpoints": ("Checkpoints", "/checkpoints", f"{number['checkpoints']}, with training states; {states}"),
        "logs": ("Log files", "/jobs", logs),
        "uploads": ("Uploads", "/data", term(settings.keep_uploads_days)),
        "exports": ("Downloads", "/checkpoints", term(settings.keep_exports_days) + "; made again when asked for"),
        "hidden_states": ("Hidden states", "/train", "stores that trainings named; they stay until you delete them"),
        "trackers": ("Trackers", "/settings", "what trainings told TensorBoard and others; it goes with their jobs"),
        "database": ("Database", "", runs + f"{rows['job_logs']:,} log lines"),
        "backups": ("Automatic copies", "", f"of the database, made before a migration; {copies} kept"),
        "broker": ("Broker", "", "its own file, small by itself"),
        "leftovers": ("Leftovers", "", "nobody needs them; see below"),
    }


def term(days: int) -> str:
    """`kept 90 days`."""
    return f"kept {days} day{'s' if days != 1 else ''}" if days else "kept for ever"


def things(survey: Survey) -> str:
    """Models, data sets and checkpoints, the largest first; each opens its part of the page."""
    if not survey.things:
        return empty_state("Nothing yet", "Models, data sets and checkpoints will be listed here with their size.")
    by_size = sorted(survey.things, key=lambda thing: (thing.outside, -thing.bytes))
    rows = [
        [
            pick("storage", thing.id, safe(thing.name), class_="sp-row-name"),
            safe(KINDS[thing.kind]),
            safe("outside of the home" if thing.outside else size(thing.bytes)),
            safe(size(thing.states) if thing.states else "–"),
        ]
        for thing in by_size[:SHOWN]
    ]
    more = f"These are the {SHOWN} largest of {len(by_size)}." if len(by_size) > SHOWN else ""
    html = table(["Name", "Kind", "Size", "Training states"], rows, "Things", True, {"Kind", "Size", "Training states"})
    return html + (tag("p", safe(more), class_="sp-lead") if more else "")


def one(thing: StorageItem, path: str, used: Sequence[str]) -> str:
    """One thing: what it costs, where it lies, what depends on it."""
    place = {"models": "models", "datasets": "data", "checkpoints": "checkpoints"}[thing.kind]
    cost = (
        f"nothing here; its files lie outside of the home ({size(thing.bytes)})" if thing.outside else size(thing.bytes)
    )
    known = facts(
        [
            ("Kind", KINDS[thing.kind]),
            ("Costs", cost),
            ("Of it training states", size(thing.states) if thing.states else ""),
            ("Where", path),
            ("Needed by", ", ".join(used) or "nothing"),
        ]
    )
    link = tag("a", f"Open this {KINDS[thing.kind]}", href=f"/{place}?id={thing.id}", class_="sp-back")
    return tag("div", detail_head(thing.name) + known + tag("div", link), class_="sp-stack")


def leftovers(items: Sequence[Leftover], home: str) -> str:
    """What no row names."""
    if not items:
        return tag("p", "Nothing is left over: every file of the home belongs to something.", class_="sp-lead")
    rows = [
        [safe(str(item.path).removeprefix(home + "/")), safe(size(item.bytes)), safe(ago(item.changed))]
        for item in items[:SHOWN_LEFTOVERS]
    ]
    more = f"And {len(items) - SHOWN_LEFTOVERS} more." if len(items) > SHOWN_LEFTOVERS else ""
    html = table(["What", "Size", "Last changed"], rows, "Leftovers", True, {"Size", "Last changed"})
    return html + (tag("p", safe(more), class_="sp-lead") if more else "")


def last_round(row: Preference | None) -> str:
    """When the reconciler put things in order, and what went."""
    if row is None:
        return notice("Nothing was put in order yet; the reconciler does it within an hour of its start.", "info")
    removed = row.value.get("removed", {})
    words = ", ".join(f"{part['count']:,} {name}" for name, part in removed.items())
    when = ago(datetime.fromisoformat(row.value["removed_at"])) if row.value.get("removed_at") and removed else ""
    gone = f" Last removed, {when}: {words}." if words else " Nothing had to go so far."
    return notice(f"Last looked {ago(row.updated_at)}.{gone}", "info")


def _name(name: str, words: dict[str, tuple[str, str, str]]) -> str:
    title, page, _ = words[name]
    return tag("a" if page else "span", safe(title), href=page or None, class_="sp-row-name")


def _bar(bytes_: int, used: int) -> str:
    bar = tag("progress", value=bytes_, max=max(used, 1), aria_hidden="true")
    return tag("div", bar + tag("span", safe(size(bytes_)), class_="sp-size"), class_="sp-progress")
