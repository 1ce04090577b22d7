"""HTML of a checkpoint's tree: the result of tuning, and predictions for any other tree. Pure functions."""

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
from models.methods.expectation import TreeEstimate, TreeMeasurements, estimate_tree, suggest_tree
from speculoos.errors import BadInput
from tracking.evaluations import machine_name
from tracking.tables import Base, Checkpoint

FASTER = "Plain decoding is faster on this machine: no tree makes this draft worthwhile."
NOT_MEASURED = (
    "This draft's acceptance rates by position are not known yet. Tune or evaluate it to get predictions for any tree."
)

SHAPE_HINT = 'Give a tree with a fixed shape: "chain 4", "tree 4x2x1", or paths such as [[0], [0, 0]].'


def tuned(checkpoint: Checkpoint) -> Mapping[str, Any]:
    """The result of the last tuning; {} without one, or with one of an older version that stored text only."""
    result = (checkpoint.figures or {}).get("tuned")
    return result if isinstance(result, Mapping) else {}


def verdict(checkpoint: Checkpoint) -> str:
    """A notice of the tuning's result; "" without one."""
    words, result = (checkpoint.figures or {}).get("tuning"), tuned(checkpoint)
    words = FASTER if result.get("plain_is_faster") else f"Tuned: {words}" if words else ""
    if not words:
        return ""
    message = " ".join(filter(None, (words, kept_tree_note(result), tuned_on(result))))
    busy = str(result.get("busy") or "")
    return (notice(busy, "warn") if busy else "") + notice(message, verdict_tone(result))


def verdict_tone(result: Mapping[str, Any]) -> Tone:
    """Tone of a tuning's result: "good" only if drafting is faster and the machine was not busy."""
    return "warn" if result.get("plain_is_faster") or result.get("busy") else "good"


def kept_tree_note(result: Mapping[str, Any]) -> str:
    """What a tuning changed in the checkpoint; "" if unknown."""
    if "kept" not in result:
        return ""
    if result["kept"] and result.get("drafting"):
        return "The checkpoint now uses this tree."
    return trees.NOT_SAVED


def found_tree(result: Mapping[str, Any]) -> str:
    """The tuned tree. The depth is counted as in the verdict: a dynamic tree's option `depth` does not count the first
    level."""
    drafting = result.get("drafting") or {}
    if drafting and "tree" not in drafting and result.get("depth"):
        return f"{result.get('nodes')} nodes, depth {result['depth']}, selected at each step"
    return trees.drafting_text(drafting) or "none: plain decoding"


def tuned_on(result: Mapping[str, Any]) -> str:
    """Machine, precision and date of the tuning, in parentheses."""
    parts = [machine_name(result), str(result.get("dtype") or ""), str(result.get("at") or "")[:10]]
    words = ", ".join(filter(None, parts))
    return f"({words})" if words else ""


def tuning_result(checkpoint: Checkpoint) -> str:
    """The verdict, its basis, and the curve of expected speed by nodes."""
    result = tuned(checkpoint)
    if not result:
        return verdict(checkpoint) or tag("p", "Not tuned yet.", class_="sp-hint")
    rows = [
        ("Tree", found_tree(result)),
        ("Expected τ", _with_interval(result, "expected_tau")),
        ("Expected speedup", _with_interval(result, "expected_speedup", "× plain")),
        ("Machine", machine_name(result)),
        ("Precision", result.get("dtype")),
        ("Questions", result.get("questions")),
        ("Verifications", result.get("verifications")),
    ]
    sizes = [(float(nodes), speedup) for nodes, _, speedup in result.get("sizes") or ()]
    title = "Expected speedup by nodes"
    chart = line_chart(
        title,
        {"best tree per size": sizes},
        unit="× plain",
        across="nodes, with the root",
        look=ChartStyle(best=True),
    )
    drawn = tag("div", chart, class_="sp-charts") if len(sizes) > 1 else ""
    return tag("div", verdict(checkpoint) + facts(rows) + drawn, class_="sp-stack")


def _with_interval(result: Mapping[str, Any], key: str, unit: str = "") -> str:
    between = interval(result, key)
    return figure(result.get(key), unit=unit) + (f", {between}" if between else "")


def measured_of(session: Session, checkpoint: Checkpoint) -> TreeMeasurements | None:
    """Measurements of its tuning, otherwise of its last evaluation, which has no step costs."""
    return TreeMeasurements.of(tuned(checkpoint)) or TreeMeasurements.of(best_figures(session, checkpoint))


def first_tree(session: Session, checkpoint: Checkpoint) -> str:
    """Initial text of the editor: the tuned tree, otherwise the one with the best prediction, otherwise ""."""
    own = (tuned(checkpoint).get("drafting") or {}).get("tree")
    if own:
        return tree_text(own)
    measured = measured_of(session, checkpoint)
    return tree_text(suggest_tree(measured)) if measured else ""


def tree_text(tree: list[list[int]]) -> str:
    """The tree as text: `chain 4` or `tree 4x2x1` if possible, otherwise its paths."""
    words = trees.drafting_text({"tree": tree})
    return words if words.startswith(("chain", "tree ")) and not words.startswith("tree of") else str(tree)


def predicted_tree(session: Session, checkpoint: Checkpoint, text: str) -> str:
    """Predictions for a tree with its picture, or a notice why there are none."""
    measured = measured_of(session, checkpoint)
    if measured is None:
        return notice(NOT_MEASURED, "info")
    try:
        tree = trees.parse(text).get("tree")
    except BadInput as error:
        return notice(str(error), "warn")
    if not tree:
        return notice(SHAPE_HINT, "warn")
    result = estimate_tree(tree, measured)
    base = session.get_one(Base, checkpoint.base_id)
    drawn = figures(result) + warnings(result) + tree_picture(result.chances) + links(base, checkpoint, text)
    return tag("div", drawn, class_="sp-stack")


def figures(result: TreeEstimate) -> str:
    timed = "" if result.step_ms is not None else "not measured: tune it on this machine"
    return tiles(
        (
            ("Expected τ", figure(result.tau), "assumes independent positions"),
            ("Step time", figure(result.step_ms, 1, "ms"), timed or "drafting and verification"),
            ("Expected speedup", figure(result.speedup, unit="×"), timed or "vs. plain"),
            ("Nodes", len(result.chances), f"{max(map(len, result.chances))} deep, without the root"),
        )
    )


def warnings(result: TreeEstimate) -> str:
    """Notices: plain decoding is faster, or some nodes have no measurements."""
    html = ""
    if result.speedup is not None and result.speedup < 1:
        html += notice("Plain decoding is faster on this machine than this tree.", "warn")
    if result.unknown:
        nodes = "node has" if result.unknown == 1 else "nodes have"
        html += notice(
            f"{result.unknown:,} {nodes} no measurements and count as never accepted, so τ is a lower bound.",
            "info",
        )
    return html


def links(base: Base, checkpoint: Checkpoint, text: str) -> str:
    to = "/playground?" + urlencode({"model": f"{base.name}@{checkpoint.name}", "tree": text})
    pair = "/compare?" + urlencode({"models": f"{base.name},{base.name}@{checkpoint.name}", "tree": text})
    buttons = link_button("Try in the Playground", to) + link_button("Compare with plain", pair)
    return tag("div", buttons, class_="sp-link-row")
