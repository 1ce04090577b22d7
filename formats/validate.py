"""Is an export what its server wants, and does it draft what the checkpoint drafts? Table, tokens' identity, proof."""

from pathlib import Path
from typing import Any

from formats import OWN, find_format
from formats.checkpoint import CheckpointFiles, read_object
from formats.facts import Facts
from formats.report import Check, ExportReport
from formats.table import compare
from models.archive import damage
from models.identity import tokenizer_sha256
from speculoos.errors import BadInput
from speculoos.reporting import Reporter, Silent

REPORT = "validation.json"


def validate(
    folder: str | Path,
    format_name: str,
    checkpoint: CheckpointFiles,
    base: Any,
    facts: Facts,
    reporter: Reporter | None = None,
) -> ExportReport:
    """The report on the export in `folder`, made of `checkpoint` for `base` (in float32). Never raises for what is
    wrong with the export: that is a check that did not pass."""
    folder, record, reporter = Path(folder), find_format(format_name), reporter or Silent()
    subject = _subject(checkpoint, facts)
    if format_name == OWN:
        checks, figures = [_sums(folder)], {}
    else:
        reporter.log("Comparing the export with what its server reads …")
        checks = compare(folder, record.load("table", checkpoint.method)(checkpoint))
        checks.append(_base(checkpoint, base, facts))
        checks.append(_tokenizer(folder, checkpoint, facts))
        checks, figures = _proved(folder, record, checkpoint, base, checks, reporter)
    return ExportReport(
        format_name, checkpoint.method, record.servers(checkpoint.method), tuple(checks), figures, subject
    )


def _proved(
    folder: Path, record: Any, checkpoint: CheckpointFiles, base: Any, checks: list[Check], reporter: Reporter
) -> tuple[list[Check], dict[str, Any]]:
    """The checks with those of the proof; a network that the table found wrong is not run."""
    if failed := [check.name for check in checks if not check.passed]:
        return [*checks, Check("logits", False, f"not tried: {', '.join(failed)} failed")], {}
    from formats import streamed
    from formats.proof import prove

    reporter.log("Rebuilding the draft from the export, as its server does, and comparing logits …")
    try:
        reader = record.load("reader", checkpoint.method)(folder, checkpoint)
        proof = prove(streamed.draft(checkpoint.path, base), reader, base, reporter)
    except (ValueError, KeyError, RuntimeError, OSError) as error:
        return [*checks, Check("logits", False, f"the export cannot be read ({_line(error)})")], {}
    return [*checks, *proof.checks()], proof.figures()


def _sums(folder: Path) -> Check:
    wrong = damage(folder)
    return Check("sums", not wrong, "; ".join(f"{file} {what}" for file, what in wrong.items()) or "SHA256SUMS hold")


def _base(checkpoint: CheckpointFiles, base: Any, facts: Facts) -> Check:
    """The base is the one that the draft was trained on."""
    trained = checkpoint.config.get("base_sha256", "")
    if trained and facts.sha256 and trained != facts.sha256:
        return Check("base", False, f"trained on weights {trained[:12]}…, this base has {facts.sha256[:12]}….")
    if base.vocab_size != checkpoint.vocab_size:
        return Check("base", False, f"vocab_size: the base has {base.vocab_size} rows, not {checkpoint.vocab_size}.")
    return Check("base", True, f"{facts.name}, weights {(facts.sha256 or 'not recorded')[:12]}")


def _tokenizer(folder: Path, checkpoint: CheckpointFiles, facts: Facts) -> Check:
    """The tokens that the export brings, or was made for, are the base's."""
    ours = checkpoint.tokenizer_sha256
    own, recorded = tokenizer_sha256(folder), _recorded(folder) or facts.tokenizer_sha256
    if own and own != ours:
        return Check("tokenizer", False, "tokenizer.json or its chat template is not the base's: another model's?")
    if recorded and recorded != ours:
        return Check(
            "tokenizer",
            False,
            f"tokenizer_sha256: made for {recorded[:12]}…, this base has {ours[:12]}…: another model's?",
        )
    return Check("tokenizer", True, f"sha256 {ours[:12]}")


def _recorded(folder: Path) -> str:
    """The tokenizer that an export says it was made for."""
    try:
        return str(read_object(folder / REPORT).get("subject", {}).get("tokenizer_sha256", ""))
    except BadInput:
        return ""


def _subject(checkpoint: CheckpointFiles, facts: Facts) -> dict[str, str]:
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
