"""A checkpoint's tree: what a tuning found, and what any other tree is expected to give. Pure functions."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

from sqlalchemy.orm import Session

from app.views.checkpoint_rows import best_figures
from app.widgets.charts import ChartStyle, line_chart
from app.widgets.elements import Tone, facts, link_button, notice, tiles
from app.widgets.formatting import figure, interval
from app.widgets.text import tag
from app.widgets.tree_picture import tree_picture
from models.methods import trees
from models.methods.expectation import Expected, Measured, expected, suggested
from speculoos.errors import BadInput
from tracking.evaluations import machine_words
from tracking.tables import Base, Checkpoint

FASTER = "Plain decoding would be faster here: no tree of this draft pays on this machine."
NOTHING = (
    "Nothing says yet how often this draft is right at which place: tune it, or evaluate it, and any tree can be "
    "reckoned."
)

SHAPES = 'Give a tree with a fixed shape: "chain 4", "tree 4x2x1", or paths such as [[0], [0, 0]].'


def tuned(checkpoint: Checkpoint) -> Mapping[str, Any]:
    """What the last tuning found; {} where there was none, or one of an earlier version that kept words alone."""
    found = (checkpoint.figures or {}).get("tuned")
    return found if isinstance(found, Mapping) else {}


def verdict(checkpoint: Checkpoint) -> str:
    """One strip; "" where nothing was tuned."""
    words, found = (checkpoint.figures or {}).get("tuning"), tuned(checkpoint)
    words = FASTER if found.get("plain_is_faster") else f"Tuned: {words}" if words else ""
    if not words:
        return ""
    said = " ".join(filter(None, (words, kept_words(found), where(found))))
    busy = str(found.get("busy") or "")
    return (notice(busy, "warn") if busy else "") + notice(said, verdict_tone(found))


def verdict_tone(found: Mapping[str, Any]) -> Tone:
    """Of a tuning's finding: good only where drafting pays and the machine was quiet."""
    return "warn" if found.get("plain_is_faster") or found.get("busy") else "good"


def kept_words(found: Mapping[str, Any]) -> str:
    """What a tuning changed about the checkpoint; "" where that is not known."""
    if "kept" not in found:
        return ""
    if found["kept"] and found.get("drafting"):
        return "The checkpoint drafts with this tree from now on."
    return trees.NOT_KEPT


def found_tree(found: Mapping[str, Any]) -> str:
    """The tree that was found, its depth counted as in the verdict: a dynamic tree's option `depth` does not count the
    first level."""
    drafting = found.get("drafting") or {}
    if drafting and "tree" not in drafting and found.get("depth"):
        return f"{found.get('nodes')} nodes, depth {found['depth']}, chosen anew at each step"
    return trees.words(drafting) or "none: plain decoding"


def where(found: Mapping[str, Any]) -> str:
    """The machine and the precision it was tuned on."""
    parts = [machine_words(found), str(found.get("dtype") or ""), str(found.get("at") or "")[:10]]
    words = ", ".join(filter(None, parts))
    return f"({words})" if words else ""


def finding(checkpoint: Checkpoint) -> str:
    """The verdict, what it rests on, and the curve it was chosen from."""
    found = tuned(checkpoint)
    if not found:
        return verdict(checkpoint) or tag("p", "Not tuned yet.", class_="sp-hint")
    rows = [
        ("Tree", found_tree(found)),
        ("Expected τ", _with_interval(found, "expected_tau")),
        ("Expected speed", _with_interval(found, "expected_speedup", "× plain")),
        ("Machine", machine_words(found)),
        ("Precision", found.get("dtype")),
        ("Questions", found.get("questions")),
        ("Verifications", found.get("verifications")),
    ]
    sizes = [(float(nodes), speedup) for nodes, _, speedup in found.get("sizes") or ()]
    title = "Expected speed by nodes"
    chart = line_chart(
        title,
        {"the best tree of a size": sizes},
        unit="× plain",
        across="nodes with the root",
        look=ChartStyle(best=True),
    )
    drawn = tag("div", chart, class_="sp-charts") if len(sizes) > 1 else ""
    return tag("div", verdict(checkpoint) + facts(rows) + drawn, class_="sp-stack")


def _with_interval(found: Mapping[str, Any], key: str, unit: str = "") -> str:
    between = interval(found, key)
    return figure(found.get(key), unit=unit) + (f", {between}" if between else "")


def measured_of(session: Session, checkpoint: Checkpoint) -> Measured | None:
    """Of its tuning, else of its last evaluation (which says nothing of costs)."""
    return Measured.of(tuned(checkpoint)) or Measured.of(best_figures(session, checkpoint))


def first_tree(session: Session, checkpoint: Checkpoint) -> str:
    """What the editor begins with: the tuned tree, else the one that is reckoned best."""
    own = (tuned(checkpoint).get("drafting") or {}).get("tree")
    if own:
        return written(own)
    measured = measured_of(session, checkpoint)
    return written(suggested(measured)) if measured else ""


def written(tree: list[list[int]]) -> str:
    """As a person types it: in words where that says all."""
    words = trees.words({"tree": tree})
    return words if words.startswith(("chain", "tree ")) and not words.startswith("tree of") else str(tree)


def reckoned(session: Session, checkpoint: Checkpoint, text: str) -> str:
    """What a tree is expected to give, drawn; or in one sentence why not."""
    measured = measured_of(session, checkpoint)
    if measured is None:
        return notice(NOTHING, "info")
    try:
        tree = trees.parse(text).get("tree")
    except BadInput as error:
        return notice(str(error), "warn")
    if not tree:
        return notice(SHAPES, "warn")
    found = expected(tree, measured)
    base = session.get_one(Base, checkpoint.base_id)
    drawn = figures(found) + warnings(found) + tree_picture(found.chances) + links(base, checkpoint, text)
    return tag("div", drawn, class_="sp-stack")


def figures(found: Expected) -> str:
    """τ, cost and speed."""
    timed = "" if found.step_ms is not None else "not timed: tune it here"
    return tiles(
        (
            ("Expected τ", figure(found.tau), "places taken as independent"),
            ("A step", figure(found.step_ms, 1, "ms"), timed or "drafting and verification"),
            ("Expected speed", figure(found.speedup, unit="×"), timed or "against plain"),
            ("Nodes", len(found.chances), f"{max(map(len, found.chances))} deep, the root left out"),
        )
    )


def warnings(found: Expected) -> str:
    """What the figures leave out, and where plain decoding is faster."""
    said = ""
    if found.speedup is not None and found.speedup < 1:
        said += notice("Plain decoding would be faster here than with this tree.", "warn")
    if found.unknown:
        nodes = "node lies" if found.unknown == 1 else "nodes lie"
        said += notice(
            f"{found.unknown:,} {nodes} where nothing was measured and count as never accepted: τ is at least this.",
            "info",
        )
    return said


def links(base: Base, checkpoint: Checkpoint, text: str) -> str:
    """Where the tree can be tried."""
    to = "/playground?" + urlencode({"model": f"{base.name}@{checkpoint.name}", "tree": text})
    pair = "/compare?" + urlencode({"models": f"{base.name},{base.name}@{checkpoint.name}", "tree": text})
    made = link_button("Try it in the Playground", to) + link_button("Compare it with plain", pair)
    return tag("div", made, class_="sp-link-row")
