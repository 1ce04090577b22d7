"""Read rows of a parquet file in bounded memory: a file of a few hundred bytes can expand to gigabytes.

Parquet stores repeated values once, so a value of 4 MB repeated a thousand times is a small file. Strings are therefore
read as dictionaries (each value once), row lengths are computed from them, and only rows below the limit are converted
to Python objects, a few megabytes at a time.
"""

from collections.abc import Collection
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import types

from corpus.readers import MAX_ROW_BYTES, Record, Records, UnreadableRecord, too_long
from speculoos.errors import BadInput, first_line

BATCH_ROWS = 256
BATCH_BYTES = 16 << 20
"""Approximate bytes of a row group decoded at once, by the sizes in the file's metadata."""
CONVERTED_ROWS = 8
"""Rows of a batch that are converted to Python objects at once, each of at most MAX_ROW_BYTES."""
GROUP_BYTES = 64 << 20
"""A row group with rows longer than MAX_ROW_BYTES on average is read up to this size."""
VALUES, VALUES_A_ROW = 4_000_000, 1000
"""Maximum values of one column in a row group: absolute, or per row if that is more."""
ELEMENT_BYTES = 16
"""Bytes counted for each list element in addition to its content: a million empty texts need memory too."""


def read_parquet(path: Path, fields: Collection[str] | None = None) -> Records:
    """All rows, numbered from 1, with the columns whose lower-case name is in `fields`.

    Raises BadInput when the file is broken, MemoryError when its pages are larger than declared.
    """
    rows = 0
    try:
        metadata = pq.read_metadata(path)
        column_paths = [metadata.schema.column(number).path for number in range(metadata.num_columns)]
        options = {"read_dictionary": column_paths, "pre_buffer": False, "buffer_size": 1 << 20}
        with pq.ParquetFile(path, metadata=metadata, **options) as file:
            names = file.schema_arrow.names
            columns = [name for name in names if fields is None or name.strip().lower() in fields]
            for number in range(file.num_row_groups):
                yield from _group(file, number, rows, columns)
                rows += metadata.row_group(number).num_rows
    except MemoryError:
        raise
    except (pa.ArrowException, ValueError, OverflowError, OSError) as error:
        raise BadInput(f"{path.name}: broken parquet file after row {rows} ({first_line(error)}).") from None


def _group(file: pq.ParquetFile, number: int, start: int, columns: list[str]) -> Records:
    group = file.metadata.row_group(number)
    size, reason = 0, ""  # decoded bytes: each distinct text once, every value of fixed width
    for index in range(group.num_columns):
        chunk = group.column(index)
        if any(f"{chunk.path_in_schema}.".startswith(f"{name}.") for name in columns):
            size += chunk.total_uncompressed_size + max(file.schema.column(index).length or 0, 8) * chunk.num_values
            if chunk.num_values > max(VALUES, VALUES_A_ROW * group.num_rows):
                reason = f"{chunk.num_values:,} values of {chunk.path_in_schema} are too many"
    if size > GROUP_BYTES and size > MAX_ROW_BYTES * group.num_rows:
        reason = too_long()
    if reason:
        yield UnreadableRecord(start + 1, f"{reason}; rows {start + 1} to {start + group.num_rows} are left out")
        return
    rows = max(1, min(BATCH_ROWS, BATCH_BYTES * group.num_rows // max(size, 1)))
    for batch in file.iter_batches(rows, row_groups=[number], columns=columns, use_threads=False):
        yield from _rows(batch, start + 1)
        start += batch.num_rows


def _rows(batch: pa.RecordBatch, first: int) -> Records:
    """The rows of a batch as objects, converted in pieces; too long rows are never converted."""
    sizes = sum((_bytes(column) for column in batch.columns), np.zeros(batch.num_rows, np.int64))
    short = sizes <= MAX_ROW_BYTES
    for start in range(0, batch.num_rows, CONVERTED_ROWS):
        fits = short[start : start + CONVERTED_ROWS]
        values = iter(batch.slice(start, CONVERTED_ROWS).filter(pa.array(fits)).to_pylist())
        for line, fit in enumerate(fits, first + start):
            yield Record(line, next(values)) if fit else UnreadableRecord(line, too_long())


def _bytes(array: pa.Array) -> np.ndarray:
    """Bytes of each entry of a column: its texts, plus ELEMENT_BYTES per list element."""
    kind = array.type
    if types.is_dictionary(kind):
        value_bytes = np.append(_bytes(array.dictionary), 0)
        return value_bytes[array.indices.fill_null(len(value_bytes) - 1).to_numpy(zero_copy_only=False)]
    if types.is_list(kind) or types.is_large_list(kind) or types.is_map(kind):
        inner = _bytes(array.keys) + _bytes(array.items) if types.is_map(kind) else _bytes(array.values)
        ends = np.concatenate(([0], np.cumsum(inner + ELEMENT_BYTES)))
        return np.diff(ends[array.offsets.to_numpy()])
    if types.is_struct(kind):
        return sum(map(_bytes, array.flatten()), np.zeros(len(array), np.int64))
    if hasattr(array, "storage"):
        return _bytes(array.storage)
    if types.is_string(kind) or types.is_binary(kind) or types.is_large_string(kind) or types.is_large_binary(kind):
        return pc.binary_length(array).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    return np.full(len(array), array.nbytes // max(len(array), 1), np.int64)
