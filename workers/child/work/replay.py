"""Job `replay`: evaluates a checkpoint on the recorded answers of a data set, on the leased device."""

from typing import Any

from corpus.recordings import read_recordings
from evaluation.replay import open_with_base, playground_answer, project_times, replay, replay_figures
from tracking import queries, replays
from tracking.tables import Dataset, Evaluation
from workers.child.context import JobContext
from workers.child.work.devices import load_models
from workers.jobs.requests import ReplayRequest


def run(request: ReplayRequest, context: JobContext) -> dict[str, Any]:
    """Replay and fill the evaluation's row; the first `request.show` answers are stored as chats."""
    data = context.input_with_files(Dataset, request.dataset_id)
    loaded = load_models(context, request.base_id, request.checkpoint_id)
    opened = open_with_base(loaded.base, loaded.draft, request.drafting)
    recordings = read_recordings(data.path, limit=request.limit)
    done = replay(recordings, opened.target, opened.make, context, request.limit)
    done, speed = project_times(done, opened.costs())
    result = replay_figures(done, loaded.base.tokenizer) | speed
    result[replays.KEY] = {"file": data.name, "rows": len(done.rows), "drafting": request.drafting}
    answers = [playground_answer(row, loaded.base.tokenizer, data.name) for row in done.rows[: request.show]]
    with context.fenced() as session:
        evaluation = session.get_one(Evaluation, request.evaluation_id)
        evaluation.state, evaluation.result = "ready", result
        model = queries.model_name(session, request.base_id, request.checkpoint_id)
        chats = [run.group_id for run in replays.save_responses(session, model, answers)]
    return {"evaluation_id": request.evaluation_id, "chats": chats, **speed, "tau": result["mean_accepted_length"]}
