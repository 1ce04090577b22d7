"""Job `replay`: a checkpoint judged on the recorded answers of a data set, while it holds the device."""

from typing import Any

from corpus.recordings import read_recordings
from evaluation.drafts import with_base
from evaluation.replay import projected, replay, result, shown
from models.base import decoding_dtype, load_base
from models.checkpoints import load_draft
from tracking import queries, replays
from tracking.tables import Base, Checkpoint, Dataset, Evaluation
from workers.ask.requests import Replay
from workers.child.context import Context
from workers.child.work.devices import take_device


def run(request: Replay, context: Context) -> dict[str, Any]:
    """Replay, and fill the evaluation's row; its first answers become chats."""
    base_row, row = context.usable(Base, request.base_id), context.usable(Checkpoint, request.checkpoint_id)
    data = context.usable(Dataset, request.dataset_id)
    device = take_device(context)
    base = load_base(
        base_row.path,
        decoding_dtype(context.settings.dtype, device),
        device,
        context.known(base_row),
        context.sums,
    )
    draft = load_draft(row.path, base, base_row.weights_sha256, row.sha256, context.sums)
    opened = with_base(base, draft, request.drafting)
    recordings = read_recordings(data.path, limit=request.limit)
    done = replay(recordings, opened.target, opened.make, context, request.limit)
    done, speed = projected(done, opened.costs())
    found = result(done, base.tokenizer) | speed
    found[replays.KEY] = {"file": data.name, "rows": len(done.rows), "drafting": request.drafting}
    answers = [shown(each, base.tokenizer, data.name) for each in done.rows[: request.show]]
    with context.fenced() as session:
        evaluation = session.get_one(Evaluation, request.evaluation_id)
        evaluation.state, evaluation.result = "ready", found
        model = queries.model_name(session, request.base_id, request.checkpoint_id)
        chats = [run.group_id for run in replays.show(session, model, answers)]
    return {"evaluation_id": request.evaluation_id, "chats": chats, **speed, "tau": found["mean_accepted_length"]}
