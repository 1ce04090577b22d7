"""Error responses in OpenAI's format: {"error": {"message", "type", "param", "code"}} with an HTTP status."""

import logging
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import ValidationError
from starlette.exceptions import HTTPException

from serving.queueing import Busy
from speculoos.errors import BadInput, Conflict, NotFound, SpeculoosError, Unavailable, Unsupported

log = logging.getLogger(__name__)
STATUS: dict[type[SpeculoosError], int] = {
    BadInput: 400,
    Unsupported: 400,
    NotFound: 404,
    Conflict: 409,
    Unavailable: 503,
}
STOPPING = "The inference server is stopping; send this again."
UNEXPECTED = "The inference server could not finish this request; its log says why."


class ApiError(Exception):
    """An error response: HTTP status, code and, if one field is invalid, `param`."""

    def __init__(self, status: int, message: str, code: str, param: str | None = None, retry_after: int | None = None):
        super().__init__(message)
        self.status, self.code, self.param, self.retry_after = status, code, param, retry_after

    def response(self) -> JSONResponse:
        headers = {"Retry-After": str(self.retry_after)} if self.retry_after else {}
        if self.status == HTTPStatus.UNAUTHORIZED:
            headers["WWW-Authenticate"] = "Bearer"
        return JSONResponse(body(str(self), self.status, self.code, self.param), self.status, headers)


def body(message: str, status: int, code: str, param: str | None = None) -> dict[str, Any]:
    """The error object as JSON."""
    return {"error": {"message": message, "type": _type(status), "param": param, "code": code}}


def as_api_error(error: BaseException) -> ApiError:
    """Convert any exception. Unexpected ones are logged, and the response hides their details."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, Busy):
        return ApiError(429, str(error), "device_busy", retry_after=error.retry_after)
    if isinstance(error, RequestValidationError | ValidationError):
        return validation_error(error.errors())
    if isinstance(error, SpeculoosError):
        message = f"{error} {error.hint}".strip()
        return ApiError(STATUS.get(type(error), 500), message, error.code)
    log.error("Unexpected error", exc_info=error)
    return ApiError(500, UNEXPECTED, "internal_error")


def install(app: FastAPI) -> None:
    """Register the exception handlers of all routes."""
    app.add_exception_handler(HTTPException, _http)
    for kind in (ApiError, Busy, RequestValidationError, SpeculoosError, Exception):
        app.add_exception_handler(kind, _any)


async def _any(request: Request, error: Exception) -> JSONResponse:
    return as_api_error(error).response()


def validation_error(problems: Any) -> ApiError:
    """Convert pydantic's list of errors to a 400 that names the first invalid field."""
    first = problems[0]
    if first["type"] == "json_invalid":
        return ApiError(400, f"The body is not JSON: {first['ctx']['error']}.", "invalid_json")
    parts = [str(part) for part in first["loc"] if part != "body"]
    field = first.get("ctx", {}).get("field") or ".".join(parts) or "body"
    if first["type"] == "extra_forbidden":
        return ApiError(400, f"{field}: this server does not know this parameter.", "unknown_parameter", field)
    reason = str(first["msg"]).removeprefix("Value error, ")
    return ApiError(400, f"{field}: {reason[:1].lower()}{reason[1:].rstrip('.')}.", "invalid_value", field)


async def _http(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    phrase = f"{request.method} {request.url.path}: {HTTPStatus(error.status_code).phrase.lower()}."
    return ApiError(error.status_code, phrase, "unknown_url" if error.status_code == 404 else "refused").response()


def _type(status: int) -> str:
    if status == HTTPStatus.UNAUTHORIZED:
        return "authentication_error"
    if status == HTTPStatus.TOO_MANY_REQUESTS:
        return "rate_limit_error"
    return "invalid_request_error" if status < 500 else "server_error"
