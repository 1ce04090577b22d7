"""HTML of a comparison of one draft in this engine and in a server (`evaluation.agreement`)."""

from collections.abc import Mapping
from typing import Any

from app.i18n import N_, t
from app.widgets.elements import Tone, notice
from app.widgets.formatting import figure, yes_or_no
from app.widgets.picker import table
from app.widgets.text import safe, tag
from tracking.evaluations import finite_number

HOW = N_(
    "The same questions, greedily: rates are shares of all verifications, and a difference within the tolerance is "
    "noise. Speeds are from different engines and cannot be compared directly."
)


def proof_view(result: Mapping[str, Any]) -> str:
    """Verdict and table; "" for evaluations without a comparison."""
    proof = result.get("proof")
    if not isinstance(proof, Mapping):
        return ""
    columns = [t("Figure"), t("This engine"), safe(str(proof.get("server") or "")), t("Tolerance")]
    rows = [
        [
            safe(t("Accepted at position {n}", n=each.get("position"))),
            *(safe(figure(finite_number(each.get(key)), 3)) for key in ("here", "there")),
            safe(f"± {figure(finite_number(each.get('tolerance')), 3)}"),
        ]
        for each in proof.get("positions") or ()
    ]
    rows.append(["τ", *_pair(proof.get("tau"), 2), ""])
    speeds = proof.get("tokens_per_second") or {}
    for name, label in (("tokens_per_second", t("Tokens/s")), ("plain_tokens_per_second", t("Baseline tokens/s"))):
        values = {where: (speeds.get(where) or {}).get(name) for where in ("here", "there")}
        rows.append([safe(label), *_pair(values, 1), ""])
    same = proof.get("identical_to_plain") or {}
    rows.append([t("Same output"), *(safe(yes_or_no(same.get(where))) for where in ("here", "there")), ""])
    html = table(columns, rows, t("This engine and the server"), named=columns[1:])
    hint = tag("p", safe(t(HOW)), class_="sp-hint")
    return notice(str(proof.get("verdict") or ""), tone(proof)) + html + hint


def tone(proof: Mapping[str, Any]) -> Tone:
    agrees = proof.get("agrees")
    return "good" if agrees else "info" if agrees is None else "bad"


def _pair(values: Any, digits: int) -> list[str]:
    numbers = values if isinstance(values, Mapping) else {}
    return [safe(figure(finite_number(numbers.get(where)), digits)) for where in ("here", "there")]
