"""Job `prove`: evaluates a draft in this engine, then in a server that it starts with and without the draft."""

import gc
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from evaluation.acceptance import evaluate
from evaluation.agreement import agreement, chain, positions_text
from evaluation.served import ServedRequest, evaluate_served
from formats.checkpoint import CheckpointFiles
from formats.serve import drafted_tokens
from formats.store import exports_folder
from speculoos.settings import Endpoint
from tracking.evaluations import columns_of
from tracking.tables import Evaluation
from workers.child.context import JobContext
from workers.child.work.evaluate import request_questions
from workers.child.work.measure import load_models
from workers.child.work.serve import endpoint_fields, prepared, private_key, show, started_engine
from workers.jobs.requests import Prove, Serve

EXACT = {"vllm": "float32", "sglang": "float32"}
"""Precision of an engine on a CPU, where this engine computes in float32; llama.cpp uses its usual one."""
SHARE = 2
"""Servers on a GPU at once."""


def run(request: Prove, context: JobContext) -> dict[str, Any]:
    """Measure here and there, compare, and fill the evaluation's row."""
    questions = request_questions(request, context)
    loaded = load_models(context, request.base_id, request.checkpoint_id)
    tokens = request.tokens or drafted_tokens(CheckpointFiles.read(loaded.checkpoint.path, loaded.base.path))
    context.log(f"Measuring {len(questions)} questions in this engine, with chains of {tokens} draft tokens.")
    choices = {"max_tokens": request.max_tokens, "options": {"tree": chain(tokens)}, "passes": 1}
    here = evaluate(loaded.base, loaded.draft, questions, context, **choices)
    precision = EXACT.get(request.engine, "auto") if loaded.device.startswith("cpu") else "auto"
    method = loaded.draft.method
    del loaded
    gc.collect()
    torch.cuda.empty_cache()  # the servers need the memory
    served = Serve(
        request.base_id,
        request.checkpoint_id,
        request.engine,
        f"prove-{context.job_id[:12]}",
        tokens=tokens,
        precision=precision,
    )
    there, server = _measure_server(served, context, questions, request.max_tokens)
    proof = agreement(here, there, server)
    context.log(proof["verdict"], "info" if proof["agrees"] else "warning")
    if proof["positions"]:
        context.log(f"Accepted by {positions_text(proof['positions'])}.")
    result = {**there, "proof": {**proof, "engine": request.engine, "draft_tokens": tokens}}
    context.update_output(Evaluation, request.evaluation_id, state="ready", result=result, **columns_of(result))
    # the README of an export made earlier lacks the proof, so that export is no longer offered
    form = served.server_engine.format_of(method, precision)
    (exports_folder(context.settings.home, request.checkpoint_id) / f"{form}.json").unlink(missing_ok=True)
    return {"evaluation_id": request.evaluation_id, "verdict": proof["verdict"], "agrees": proof["agrees"]}


def _measure_server(
    request: Serve, context: JobContext, questions: Sequence[dict[str, Any]], max_tokens: int
) -> tuple[dict[str, Any], str]:
    """(result of the server with the draft beside the same server without it, its name and version)."""
    with prepared(request, context, SHARE) as drafted, private_key(context, drafted):
        plain = replace(drafted, launch=replace(drafted.launch, draft=None, method="", tokens=0))
        name = f"{drafted.engine.title} {drafted.version}"
        show(context, f"Starting {name} with the draft.")
        with started_engine(drafted, context) as first:
            show(context, f"Starting {name} without the draft.")
            with started_engine(plain, context) as second:
                endpoints = [Endpoint(drafted.name, **endpoint_fields(drafted, each)) for each in (first, second)]
                context.log(f"Measuring {name} with and without the draft, alternating.")
                options = ServedRequest(max_tokens)
                return evaluate_served(endpoints[0], questions, context, options, plain_endpoint=endpoints[1]), name
