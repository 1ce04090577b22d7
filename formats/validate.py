"""Validate an export: files and config as its server reads them, the same tokenizer, the same drafts as the
checkpoint."""

from pathlib import Path
from typing import Any

from formats import OWN, find_format
from formats.checkpoint import CheckpointFiles, read_object
from formats.facts import CardFacts
from formats.report import Check, ExportReport
from formats.table import compare
from models.archive import checkpoint_problems
from models.identity import tokenizer_sha256
from speculoos.errors import BadInput
from speculoos.reporting import Reporter, SilentReporter

REPORT = "validation.json"


def validate(
    folder: str | Path,
    format_name: str,
    checkpoint: CheckpointFiles,
    base: Any,
    facts: CardFacts,
    reporter: Reporter | None = None,
) -> ExportReport:
    """The report on the export of `checkpoint` in `folder`, for `base` in float32. Faults of the export do not raise;
    they are checks that did not pass."""
    folder, record, reporter = Path(folder), find_format(format_name), reporter or SilentReporter()
    subject = _subject(checkpoint, facts)
    if format_name == OWN:
        checks, figures = [_sums(folder)], {}
    else:
        reporter.log("Comparing the export with what its server reads …")
        checks = compare(folder, record.load("table", checkpoint.method)(checkpoint))
        checks.append(_base(checkpoint, base, facts))
        checks.append(_tokenizer(folder, checkpoint, facts))
        checks, figures = _compared(folder, record, checkpoint, base, checks, reporter)
    return ExportReport(
        format_name, checkpoint.method, record.servers(checkpoint.method), tuple(checks), figures, subject
    )


def _compared(
    folder: Path, record: Any, checkpoint: CheckpointFiles, base: Any, checks: list[Check], reporter: Reporter
) -> tuple[list[Check], dict[str, Any]]:
    """`checks` with those of the logits and drafted tokens, which run only if all earlier checks passed; and
    figures."""
    if failed := [check.name for check in checks if not check.passed]:
        return [*checks, Check("logits", False, f"not compared: {', '.join(failed)} failed")], {}
    from formats import streamed
    from formats.proof import compare_drafts

    reporter.log("Rebuilding the draft from the export, as its server does, and comparing logits …")
    try:
        reader = record.load("reader", checkpoint.method)(folder, checkpoint)
        proof = compare_drafts(streamed.streamed_draft(checkpoint.path, base), reader, base, reporter)
    except (ValueError, KeyError, RuntimeError, OSError) as error:
        return [*checks, Check("logits", False, f"the export cannot be read ({_line(error)})")], {}
    return [*checks, *proof.checks()], proof.figures()


def _sums(folder: Path) -> Check:
    wrong = checkpoint_problems(folder)
    return Check("sums", not wrong, "; ".join(f"{file} {fault}" for file, fault in wrong.items()) or "SHA256SUMS match")


def _base(checkpoint: CheckpointFiles, base: Any, facts: CardFacts) -> Check:
    """The base model is the one that the draft was trained on."""
    trained = checkpoint.config.get("base_sha256", "")
    if trained and facts.sha256 and trained != facts.sha256:
        return Check("base", False, f"trained on weights {trained[:12]}…, this base model has {facts.sha256[:12]}….")
    if base.vocab_size != checkpoint.vocab_size:
        detail = f"vocab_size: the base model has {base.vocab_size} rows, not {checkpoint.vocab_size}."
        return Check("base", False, detail)
    return Check("base", True, f"{facts.name}, weights {(facts.sha256 or 'not recorded')[:12]}")


def _tokenizer(folder: Path, checkpoint: CheckpointFiles, facts: CardFacts) -> Check:
    """The tokenizer in the export's folder, and the one in its report, are the base model's."""
    expected = checkpoint.tokenizer_sha256
    stored, recorded = tokenizer_sha256(folder), _recorded(folder) or facts.tokenizer_sha256
    if stored and stored != expected:
        return Check("tokenizer", False, "tokenizer.json or its chat template is not the base model's.")
    if recorded and recorded != expected:
        return Check(
            "tokenizer",
            False,
            f"tokenizer_sha256: exported for {recorded[:12]}…, this base model has {expected[:12]}….",
        )
    return Check("tokenizer", True, f"sha256 {expected[:12]}")


def _recorded(folder: Path) -> str:
    """The sha256 of the tokenizer in an export's report; "" if there is none."""
    try:
        return str(read_object(folder / REPORT).get("subject", {}).get("tokenizer_sha256", ""))
    except BadInput:
        return ""


def _subject(checkpoint: CheckpointFiles, facts: CardFacts) -> dict[str, str]:
    return {
        "base": facts.name,
        "base_location": facts.location,
        "base_revision": facts.revision,
        "base_sha256": facts.sha256 or checkpoint.config.get("base_sha256", ""),
        "tokenizer_sha256": checkpoint.tokenizer_sha256,
        "checkpoint": facts.checkpoint,
    }


def _line(error: Exception) -> str:
    text = str(error.args[0] if isinstance(error, KeyError) and error.args else error)
    return " ".join(text.split())[:300].rstrip(".")
