"""Import a file of answered conversations as a data set ready for training: rendered, tokenised and masked with the
base's chat template. The report includes lengths and the coverage of draft vocabularies."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from corpus.answered import AnsweredRow, AnsweredTokens, read_answered
from corpus.importing import ImportReport, PromptSource, write_rows
from corpus.rows import DEFAULT_MAX_ROWS, BadRow, Files
from corpus.shards import length_bucket
from speculoos.errors import BadInput
from speculoos.reporting import Reporter

SIZES = tuple(2**n for n in range(8, 18))
"""Draft vocabulary sizes whose coverage is reported: 256 … 131,072 tokens."""
Masking = Callable[[dict[str, Any]], AnsweredTokens]
"""(row with `messages` and `finish`) → its tokens; raises BadInput, without naming the row, for an unusable one."""


def import_answered(
    files: Files,
    folder: str | Path,
    masking: Masking,
    reporter: Reporter,
    *,
    original_name: str = "",
    size: int | None = None,
    limit: int | None = None,
    max_rows: int = DEFAULT_MAX_ROWS,
    mapping: Mapping[str, str] | None = None,
    **summary: Any,
) -> dict[str, Any]:
    """Import a file, or several of `size` bytes in total, into the data set folder `folder`. Returns the report of
    `import_prompts` with `tokens`, `answer_tokens` (in the loss), `cut_answers`, `mask_sources` (rows by mask source),
    `lengths` ([max tokens, rows] by powers of two) and `coverage` ([size, fraction of answer tokens covered by the
    most frequent `size` tokens]).

    `summary` goes to `dataset.json`: the base's and its tokenizer's sha256. Raises BadInput as `import_prompts` does.
    """
    source = PromptSource.of(files, original_name, size, "conversation")
    rows = tokenised_rows(read_answered(files, max_rows=max_rows, mapping=mapping), masking, limit)
    return write_rows(source, rows, folder, reporter, AnsweredReport(), kind="conversations", **summary)


def tokenised_rows(
    rows: Iterable[AnsweredRow | BadRow], masking: Masking, limit: int | None = None
) -> Iterator[AnsweredRow | BadRow]:
    """Rows with their tokens, up to `limit` good ones. A row that the template rejects, or without tokens in the loss,
    is a bad one."""
    good = 0
    for row in rows:
        if limit is not None and good >= limit:
            return
        result = row if isinstance(row, BadRow) else _tokenise(row, masking)
        good += isinstance(result, AnsweredRow)
        yield result


def _tokenise(row: AnsweredRow, masking: Masking) -> AnsweredRow | BadRow:
    try:
        masked = masking(row.to_json())
    except BadInput as error:
        return BadRow(row.line, str(error))
    if not masked.spans:
        return BadRow(row.line, "nothing to learn from: the template changes its answers, or a limit cut the only one")
    return replace(row, masked=masked)


class AnsweredReport(ImportReport):
    """Counts of an import of answered conversations."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = self.answer_tokens = self.cut_answers = 0
        self.mask_sources: Counter[str] = Counter()
        self.lengths: Counter[int] = Counter()
        self.used: Counter[int] = Counter()

    def add(self, row: Any) -> None:
        super().add(row)
        if isinstance(row, BadRow):
            return
        ids = row.masked.token_ids
        self.size += 8 * len(ids)  # approximate size as JSON
        self.tokens += len(ids)
        self.cut_answers += row.cut
        self.mask_sources[row.masked.source] += 1
        self.lengths[length_bucket(len(ids))] += 1
        for start, end in row.masked.spans:
            self.answer_tokens += end - start
            self.used.update(ids[start:end])

    def to_json(self) -> dict[str, Any]:
        """See `import_answered`."""
        return {
            **super().to_json(),
            "tokens": self.tokens,
            "answer_tokens": self.answer_tokens,
            "cut_answers": self.cut_answers,
            "mask_sources": dict(self.mask_sources),
            "lengths": sorted(self.lengths.items()),
            "coverage": self._coverage(),
        }

    def _coverage(self) -> list[tuple[int, float]]:
        """[(size, fraction of answer tokens covered)] up to the size that covers all."""
        counts = [count for _, count in self.used.most_common()]
        sizes = [size for size in SIZES if size < len(counts)] + [len(counts)]
        return [(size, round(sum(counts[:size]) / max(self.answer_tokens, 1), 4)) for size in sizes]
