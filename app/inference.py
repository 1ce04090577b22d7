"""Client of the inference server: posts through the `openai` client; errors become one sentence."""

from functools import lru_cache
from typing import Any

import openai

from speculoos.errors import BadInput, Unavailable
from speculoos.settings import Settings
from tracking import runs
from tracking.db import writing

DOWN = "The inference server does not respond at {url}; start it with `speculoos up` and send again."


def start(settings: Settings, run_id: str) -> None:
    """Request generation of run `run_id`. On failure the run ends FAILED with the raised message.

    Raises Unavailable if the server is down or busy, BadInput if it refuses the request.
    """
    try:
        _post(settings, f"/runs/{run_id}")
    except (Unavailable, BadInput) as error:
        with writing(settings) as session:
            runs.fail_run(session, run_id, str(error))
        raise


def cancel(settings: Settings, run_id: str) -> None:
    """Stop run `run_id`. If the server is down, only the row is ended."""
    try:
        _post(settings, f"/runs/{run_id}/cancel")
    except Unavailable:
        with writing(settings) as session:
            runs.cancel_run(session, run_id)


def _post(settings: Settings, path: str) -> Any:
    try:
        return _client(settings.inference_url, settings.inference_token).post(path, cast_to=object, body={})
    except openai.APIConnectionError:
        raise Unavailable(DOWN.format(url=settings.inference_url)) from None
    except openai.APIStatusError as error:
        body = error.body if isinstance(error.body, dict) else {}
        message = body.get("message") or f"The inference server returned status {error.status_code}."
        kind = Unavailable if error.status_code in (401, 403, 429) or error.status_code >= 500 else BadInput
        raise kind(str(message)) from None


@lru_cache(maxsize=4)
def _client(url: str, token: str) -> openai.OpenAI:
    """A client that ignores HTTP_PROXY: a proxy could not reach the server, and would receive the token."""
    http_client = openai.DefaultHttpxClient(trust_env=False)
    return openai.OpenAI(
        base_url=f"{url}/v1", api_key=token or "none", max_retries=0, timeout=30, http_client=http_client
    )
