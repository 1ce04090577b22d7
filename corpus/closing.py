"""Finish a generation in one folder: remove duplicates, then write `dataset.json`."""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from corpus.conversations import DUPLICATE, GenerateOptions
from corpus.duplicates import remove_duplicates
from corpus.shards import write_summary


def finish_dataset(
    folder: str | Path, options: GenerateOptions, report: Mapping[str, Any], **summary: Any
) -> dict[str, Any]:
    """Write the report and `summary` to `dataset.json`; returns the report, without duplicates if `options.unique`."""
    removed = remove_duplicates(Path(folder)).total() if options.unique and report["complete"] else 0
    left_out = {**report["left_out"], **({DUPLICATE: removed} if removed else {})}
    report = {**report, "rows": report["rows"] - removed, "left_out": left_out}
    config = {**asdict(options), **summary.pop("config", {})}
    write_summary(folder, kind="conversations", config=config, **summary, **report)
    return report
