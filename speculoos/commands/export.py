"""speculoos export: a checkpoint as the zip the pages offer."""

from pathlib import Path
from typing import Annotated

import typer

from speculoos.console import Json, finish


def export(
    checkpoint: Annotated[str, typer.Argument(help="MODEL@CHECKPOINT, a checkpoint's name or its id.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File to write; default MODEL-CHECKPOINT.zip here.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Write a zip of model.safetensors, config.json, the model card and sha256 sums."""
    from models import archive
    from speculoos.sums import Sums, file_sha256
    from tracking import queries
    from tracking.db import reading
    from upkeep.homes import open_home

    settings = open_home()
    with reading(settings) as session:
        row = queries.find_checkpoint(session, checkpoint)
        queries.must_be_ready(row)
        base = queries.find_base(session, row.base_id).name
    target = (output or Path(archive.archive_name(base, row.name))).expanduser().resolve()
    if target.is_dir():
        target = target / archive.archive_name(base, row.name)
    archive.check(row.path, row.name, row.sha256, Sums.of(settings))
    archive.write_zip(row.path, target)
    found = {"path": str(target), "bytes": target.stat().st_size, "sha256": file_sha256(target)}
    finish({**found, "checkpoint": f"{base}@{row.name}"}, as_json, f"{target} ({found['bytes'] / 1e6:.1f} MB)")
