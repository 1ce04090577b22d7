"""The end of a generation in one folder: duplicates are taken out, then `dataset.json` says what there is."""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from corpus.conversations import DUPLICATE, GenerateOptions
from corpus.duplicates import remove_duplicates
from corpus.shards import write_summary


def close(folder: str | Path, options: GenerateOptions, report: Mapping[str, Any], **summary: Any) -> dict[str, Any]:
    """The report, less what was there twice where `options` do not want that; `dataset.json` has it, with `summary`."""
    taken = remove_duplicates(Path(folder)).total() if options.unique and report["complete"] else 0
    left_out = {**report["left_out"], **({DUPLICATE: taken} if taken else {})}
    report = {**report, "rows": report["rows"] - taken, "left_out": left_out}
    config = {**asdict(options), **summary.pop("config", {})}
    write_summary(folder, kind="conversations", config=config, **summary, **report)
    return report
