"""Job `import_answered`: imports a file of answered conversations as training data."""

from functools import partial
from typing import Any

from corpus.importing import import_answered
from models.base import load_tokenizer, read_eos_ids
from tracking.tables import Base
from training.masks import mask_conversation
from workers.child.context import JobContext
from workers.child.work.answers import write_preview
from workers.child.work.import_prompts import options, publish, readable
from workers.child.work.input_files import given_files
from workers.jobs.requests import ImportAnswered

COUNTED = ("tokens", "answer_tokens", "cut_answers")


def run(request: ImportAnswered, context: JobContext) -> dict[str, Any]:
    """Render and tokenize the file with the base's template, and fill the data set's row; returns the counts."""
    base, folder = context.input_with_files(Base, request.base_id), context.dataset_folder(request.dataset_id)
    tokenizer = load_tokenizer(base.path)
    masking = partial(mask_conversation, tokenizer=tokenizer, eos_ids=read_eos_ids(base.path, tokenizer))
    with readable(request), given_files(request, context) as source:
        report = import_answered(
            source.files,
            folder,
            masking,
            context,
            **options(request, source, context),
            base_sha256=base.weights_sha256,
            tokenizer_sha256=base.tokenizer_sha256,
        )
    write_preview(context, folder, base.path)
    return publish(request, context, folder, report, source) | {key: report[key] for key in COUNTED}
