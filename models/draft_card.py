"""The model card (README.md) that lies in every draft checkpoint. Knows text only."""

import json
from typing import Any

from methods import METHODS


def draft_card(config: dict[str, Any], size_bytes: int, parameters: int) -> str:
    """Markdown: what the draft is, which base and data it comes from, its settings and figures, how to load it."""
    method, base = config["speculoos_method"], config.get("base") or "unknown"
    training = config.get("training", {})
    return "\n".join(
        [
            "---\nlibrary_name: speculoos\ntags:\n- speculative-decoding\n- " + method + "\n---",
            f"# {METHODS[method].noun if method in METHODS else method} for {_line(base)}",
            f"{parameters:,} stored parameters, {config.get('dtype')}, {size_bytes / 1e6:.1f} MB.\n",
            f"Base model: `{_line(base)}`, sha256 of its weights `{config.get('base_sha256') or 'not recorded'}`. "
            "With another base, or another quantisation of it, fewer draft tokens are accepted.\n",
            "The draft only proposes; every token is checked by the base, whose greedy output it does not change.\n",
            *_section("Source", training.get("source")),
            *_section("Data", training.get("dataset")),
            *_section("Settings", training.get("settings")),
            *_section("Figures", training.get("figures")),
            *_section("Drafting", _drafting(config)),
            *_notes(training.get("notes")),
            "## How to load\n",
            "```python\nfrom models.base import load_base\nfrom models.checkpoints import load_draft\n\n"
            f'base = load_base("PATH_OF_BASE")  # {_line(base)}\ndraft = load_draft("THIS_FOLDER", base)\n```\n',
            "Check the files with `sha256sum -c SHA256SUMS`.\n",
        ]
    )


def _section(title: str, content: Any) -> list[str]:
    if not content:
        return []
    if not isinstance(content, dict):
        return [f"## {title}\n", _line(content) + "\n"]
    rows = [f"| {_line(key)} | {_cell(value)} |" for key, value in content.items() if value not in (None, "")]
    return [f"## {title}\n", "| | |\n| --- | --- |", *rows, ""]


def _drafting(config: dict[str, Any]) -> dict[str, Any]:
    """How the workbench drafts with it unless told otherwise, and what was expected of that where it was tuned."""
    if not config.get("drafting"):
        return {}
    tuning = {name: value for name, value in config.get("tuning", {}).items() if value != []}
    if sizes := tuning.get("sizes"):
        each = (f"{s['nodes']}: τ {s['expected_tau']:.2f}, {s['speedup']:.2f} ×" for s in sizes)
        tuning["sizes"] = "nodes, expected τ and times plain: " + "; ".join(each)
    return {"options": json.dumps(config["drafting"])} | tuning


def _notes(text: Any) -> list[str]:
    return ["## Notes\n", str(text).strip() + "\n"] if text else []


def _cell(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else _line(value).replace("|", "\\|")


def _line(value: Any) -> str:
    return " ".join(str(value).split())
