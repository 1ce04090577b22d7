"""The README.md of an export: how to serve it, what it passed, and where it comes from. Text only, no torch."""

from typing import Any

from formats.checkpoint import Checkpoint
from formats.facts import Facts
from formats.record import Format
from formats.report import Report
from formats.serve import measured
from methods import METHODS

PLACES = ("draft_path", "device")
"""Settings that say something about the machine, not about the draft."""
LICENCE = (
    "The draft was trained on the base's own answers and hidden states, and may hold parts of it (its head starts from "
    "the base's rows): the base's licence applies to it. Prompts and answers used for training may have terms of their "
    "own."
)


def readme(record: Format, checkpoint: Checkpoint, facts: Facts, report: Report, folder: str) -> str:
    """Markdown, from the command down to the licence."""
    layout = record.layout(checkpoint.method)
    assert layout is not None
    training = checkpoint.config.get("training") or {}
    noun = METHODS[checkpoint.method].noun if checkpoint.method in METHODS else checkpoint.method
    return "\n".join(
        [
            "---\ntags:\n- speculative-decoding\n- " + checkpoint.method + "\n---",
            f"# {noun} for {_line(facts.name)}, for {record.title}",
            f"For {layout.servers}. Written by Speculoos from checkpoint `{_line(facts.checkpoint or 'unnamed')}`.\n",
            *_verdict(report),
            "## Serve\n",
            record.load("serve", checkpoint.method)(checkpoint, facts, folder),
            measured(checkpoint) + "\n",
            "## Base\n",
            _table(_base(facts, checkpoint)),
            *_section("Data", training.get("dataset")),
            *_section("Recipe", {k: v for k, v in (training.get("settings") or {}).items() if k not in PLACES}),
            *_section("Figures", training.get("figures")),
            *_section("Validation", {c.name: c.detail if c.passed else f"FAILED: {c.detail}" for c in report.checks}),
            *(["## Notes\n", str(training["notes"]).strip() + "\n"] if training.get("notes") else []),
            "## Licence\n",
            f"Licence of the base: {_line(facts.licence or 'not recorded')}. {LICENCE}\n",
            "Check the files with `sha256sum -c SHA256SUMS`; `validation.json` holds the whole report.",
            "",
        ]
    )


def _verdict(report: Report) -> list[str]:
    if report.passed:
        return ["Its files and its logits were compared with the trained draft before it was given away.\n"]
    return [
        "**This export failed its validation and should not be served:** " + _line("; ".join(report.failures)) + "\n"
    ]


def _base(facts: Facts, checkpoint: Checkpoint) -> dict[str, str]:
    return {
        "model": facts.location if facts.source == "hub" else facts.name,
        "source": facts.source,
        "revision": facts.revision or "not recorded",
        "sha256 of its weights": facts.sha256 or checkpoint.config.get("base_sha256") or "not recorded",
        "sha256 of its tokenizer": facts.tokenizer_sha256 or checkpoint.tokenizer_sha256,
    }


def _section(title: str, content: Any) -> list[str]:
    if not content:
        return []
    return [f"## {title}\n", _table(content) if isinstance(content, dict) else _line(content) + "\n"]


def _table(rows: dict[str, Any]) -> str:
    lines = [f"| {_cell(key)} | {_cell(value)} |" for key, value in rows.items() if value not in (None, "")]
    return "\n".join(["| | |\n| --- | --- |", *lines, ""])


def _cell(value: Any) -> str:
    text = f"{value:.4g}" if isinstance(value, float) else _line(value)
    return text.replace("|", "\\|")


def _line(value: Any) -> str:
    return " ".join(str(value).split())
