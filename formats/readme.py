"""The README.md of an export: how to serve it, its validation and its origin. Text only, no torch."""

import re
import shlex

from formats.checkpoint import CheckpointFiles
from formats.facts import CardFacts
from formats.report import ExportReport
from formats.serve import by_load, measured
from formats.servers import Format
from models.methods import METHODS
from speculoos.markdown import (
    block_quotation,
    code_span,
    escape_text,
    fenced_code_block,
    markdown_section,
    markdown_table,
    yaml_scalar,
)

MACHINE_SETTINGS = ("draft_path", "device")
"""Settings that describe the machine, not the draft."""
LICENSE = (
    "The draft was trained on responses and hidden states of the base model and may contain parts of it (its lm_head "
    "is initialized from the base model's): the base model's license applies to it. Prompts and responses used for "
    "training may have their own terms."
)


def readme(
    record: Format,
    checkpoint: CheckpointFiles,
    facts: CardFacts,
    report: ExportReport,
    folder: str,
    repository: str = "",
) -> str:
    """The README as Markdown. `repository`: the hub id from which the export can be downloaded."""
    training = checkpoint.config.get("training") or {}
    settings = {k: v for k, v in (training.get("settings") or {}).items() if k not in MACHINE_SETTINGS}
    download = f"hf download {shlex.quote(repository)} --local-dir {shlex.quote(f'./{folder}')}"
    verdict = "Its files and logits were compared with the trained draft when it was exported.\n"
    if not report.passed:
        failures = escape_text("; ".join(report.failures))
        verdict = f"**This export failed its validation and should not be served:** {failures}\n"
    base = {
        "model": facts.location if facts.on_the_hub else facts.name,
        "source": facts.source,
        "revision": facts.revision or "not recorded",
        "sha256 of its weights": facts.sha256 or checkpoint.config.get("base_sha256") or "not recorded",
        "sha256 of its tokenizer": facts.tokenizer_sha256 or checkpoint.tokenizer_sha256,
    }
    served = record.serve(checkpoint, facts, folder)
    noun = METHODS[checkpoint.method].noun if checkpoint.method in METHODS else checkpoint.method
    return "\n".join(
        [
            _front(record, checkpoint, facts),
            f"# {noun} for {escape_text(facts.name)}, for {record.title}",
            f"For {record.servers(checkpoint.method)}. Written by Speculoos from checkpoint "
            f"{code_span(facts.checkpoint or 'unnamed')}.\n",
            verdict,
            "## Serve\n",
            *(["Download it first:\n", fenced_code_block(download, "sh")] if repository else []),
            _folders(facts, folder, served),
            served,
            measured(checkpoint) + "\n",
            *markdown_section("Measured", dict(facts.measured)),
            *([by_load(facts)] if facts.loads else []),
            "## Base\n",
            markdown_table(base),
            *markdown_section("Data", training.get("dataset")),
            *markdown_section("Recipe", settings),
            *markdown_section("Figures", training.get("figures")),
            *markdown_section(
                "Validation", {c.name: c.detail if c.passed else f"FAILED: {c.detail}" for c in report.checks}
            ),
            *(["## Notes\n", block_quotation(training["notes"]) + "\n"] if training.get("notes") else []),
            "## License\n",
            f"License of the base model: {escape_text(facts.licence or 'not recorded')}. {LICENSE}\n",
            "Check the files with `sha256sum -c SHA256SUMS`; `validation.json` contains the full report.",
            "",
        ]
    )


def _folders(facts: CardFacts, folder: str, served: str) -> str:
    base = (
        ""
        if facts.model == facts.location or facts.model not in served
        else f"; {code_span(facts.model)} stands for the folder of {escape_text(facts.name)}"
    )
    note = f"{code_span(f'./{folder}')} is the folder with this file; run the commands in its parent folder{base}.\n"
    if facts.source != "starter":
        return note
    return note + (
        f"\nThe draft was trained with a quantized copy of {code_span(facts.location)}; with that model itself "
        "slightly fewer draft tokens may be accepted.\n"
    )


def _front(record: Format, checkpoint: CheckpointFiles, facts: CardFacts) -> str:
    """The card's metadata for the hub (https://huggingface.co/docs/hub/model-cards)."""
    values = {
        "base_model": facts.hub_id,
        "license": facts.licence.lower() if facts.hub_id and re.fullmatch(r"[\w.-]+", facts.licence) else "",
        "library_name": "transformers" if record.name == "huggingface" else "",
        "pipeline_tag": "text-generation",
    }
    tags = dict.fromkeys(["speculative-decoding", checkpoint.method, record.name, "speculoos"])
    lines = [f"{key}: {yaml_scalar(value)}" for key, value in values.items() if value]
    return "\n".join(["---", *lines, "tags:", *(f"- {yaml_scalar(tag)}" for tag in tags), "---"])
