"""The model card (README.md) of draft checkpoints."""

import json
from typing import Any

from models.methods import METHODS
from models.starter import STARTER_HUB_ID, STARTER_WEIGHTS_SUM
from speculoos.markdown import (
    block_quotation,
    code_span,
    escape_text,
    fenced_code_block,
    markdown_section,
    one_line,
    yaml_scalar,
)


def draft_card(config: dict[str, Any], size_bytes: int, parameters: int) -> str:
    """The card as Markdown: base, data, settings and figures of the draft, and how to load it."""
    method, base = config["speculoos_method"], config.get("base") or "unknown"
    training = config.get("training", {})
    copy = (
        f" (a quantised copy of {code_span(STARTER_HUB_ID)})"
        if config.get("base_sha256") == STARTER_WEIGHTS_SUM
        else ""
    )
    return "\n".join(
        [
            "---\nlibrary_name: speculoos\ntags:\n- speculative-decoding\n- " + yaml_scalar(method) + "\n---",
            f"# {METHODS[method].noun if method in METHODS else escape_text(method)} for {escape_text(base)}",
            f"{parameters:,} stored parameters, {config.get('dtype')}, {size_bytes / 1e6:.1f} MB.\n",
            f"Base model: {code_span(base)}{copy}, "
            f"sha256 of its weights {code_span(config.get('base_sha256') or 'not recorded')}. "
            "With another base, or another quantisation of it, fewer draft tokens are accepted.\n",
            "The base verifies every draft token, so its greedy output does not change.\n",
            *markdown_section("Source", training.get("source")),
            *markdown_section("Data", training.get("dataset")),
            *markdown_section("Settings", training.get("settings")),
            *markdown_section("Figures", training.get("figures")),
            *markdown_section("Drafting", _drafting(config)),
            *(["## Notes\n", block_quotation(training["notes"]) + "\n"] if training.get("notes") else []),
            "## How to load\n",
            "With Speculoos installed (exports for inference servers have their own instructions):\n",
            fenced_code_block(_loading(config, base), "python"),
            "Check the files with `sha256sum -c SHA256SUMS`.\n",
        ]
    )


def _loading(config: dict[str, Any], base: str) -> str:
    if config.get("base_path"):
        return 'import speculoos\n\ndraft = speculoos.load("THIS_FOLDER")'
    return (
        "from models.base import load_base\nfrom models.checkpoints import load_draft\n\n"
        f'base = load_base("PATH_OF_BASE")  # {one_line(base)}\ndraft = load_draft("THIS_FOLDER", base)'
    )


def _drafting(config: dict[str, Any]) -> dict[str, Any]:
    if not config.get("drafting"):
        return {}
    tuning = dict(config.get("tuning", {}))
    if sizes := tuning.get("sizes"):
        each = (f"{s['nodes']}: τ {s['expected_tau']:.2f}, {s['speedup']:.2f} ×" for s in sizes)
        tuning["sizes"] = "nodes, expected τ and speedup: " + "; ".join(each)
    return {"options": json.dumps(config["drafting"])} | tuning
