"""Validation of a request's JSON body."""

from typing import Annotated, Any

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from speculoos.errors import BadInput, Conflict
from training.hidden_states.wire import StatesRequest

NonNegativeInt = Annotated[int, Field(ge=0, lt=1 << 31)]
MIN_LAYER_LIMIT = 3
"""Layers that may be requested of any base model: the three of an EAGLE-3 draft may coincide in a small model."""


class RequestLimits(BaseModel):
    model_config = ConfigDict(frozen=True)

    tokens: int = 65_536
    """Maximum rows × longest row of a request."""
    rows: int = 4096
    waiting: int = 16
    """Maximum requests in the server, the running one included."""


class StatesBody(BaseModel):
    """The body of POST /v1/hidden_states."""

    model_config = ConfigDict(extra="forbid")

    rows: list[list[NonNegativeInt]] = Field(min_length=1)
    layers: list[NonNegativeInt] = []
    places: list[list[NonNegativeInt]] | None = None
    base_sha256: str = ""


def parse_request(body: bytes, base: Any, sha256: str, limits: RequestLimits) -> StatesRequest:
    """The request in a body, validated against the base model and the limits. Raises Conflict for another base, or
    BadInput that names the first invalid field."""
    try:
        request = StatesBody.model_validate_json(body)
    except ValidationError as error:
        problem = error.errors(include_input=False)[0]
        field = ".".join(map(str, problem["loc"])) or "body"
        raise BadInput(f"{field}: {problem['msg'][:1].lower()}{problem['msg'][1:]}.") from None
    if request.base_sha256 and request.base_sha256 != sha256:
        raise Conflict(
            f"This server runs a base with weights {sha256[:12]}…, the request is for {request.base_sha256[:12]}….",
            "Serve the base model of this training.",
        )
    _check_rows(request.rows, base, limits)
    _check_layers(request.layers, base)
    _check_positions(request.places, request.rows)
    rows = tuple(torch.tensor(row, dtype=torch.int32) for row in request.rows)
    positions = None if request.places is None else tuple(torch.tensor(p, dtype=torch.int32) for p in request.places)
    return StatesRequest(rows, tuple(request.layers), positions)


def _check_rows(rows: list[list[int]], base: Any, limits: RequestLimits) -> None:
    lengths = [*map(len, rows)]
    if len(lengths) > limits.rows or max(lengths) * len(lengths) > limits.tokens:
        raise BadInput(
            f"rows: {len(lengths)} rows of up to {max(lengths)} tokens are more than the {limits.rows} rows and "
            f"{limits.tokens} tokens that this server accepts at once; lower batch_tokens, or start it with a higher "
            "--max-tokens."
        )
    if max(lengths) > base.max_length or not min(lengths):
        raise BadInput(f"rows: each takes 1 to {base.max_length} tokens, got {min(lengths)} to {max(lengths)}.")
    if (highest := max(map(max, rows))) >= base.vocab_size:
        raise BadInput(f"rows: token id {highest} is not of this base, which has {base.vocab_size}.")


def _check_layers(layers: list[int], base: Any) -> None:
    """The number of layers is limited too: each adds one hidden state per token to the response."""
    if wrong := [layer for layer in layers if layer >= base.num_layers]:
        raise BadInput(f"layers: this base has layers 0 to {base.num_layers - 1}, got {wrong[0]}.")
    if len(layers) > (max_layers := max(base.num_layers, MIN_LAYER_LIMIT)):
        raise BadInput(f"layers: at most {max_layers} at once, got {len(layers)}.")


def _check_positions(places: list[list[int]] | None, rows: list[list[int]]) -> None:
    if places is None:
        return
    if len(places) != len(rows):
        raise BadInput(f"places: expected a list for each of {len(rows)} rows, got {len(places)}.")
    for positions, row in zip(places, rows, strict=True):
        if positions != sorted(set(positions)) or (positions and positions[-1] >= len(row)):
            raise BadInput(f"places: expected ascending positions of a row of {len(row)} tokens.")
