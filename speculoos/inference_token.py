"""The token with which programs of this home folder authenticate at the inference server."""

import secrets

from speculoos.files import read_or_create_secret
from speculoos.settings import Settings


def read_inference_token(settings: Settings) -> str:
    """The token in home/secrets/inference-token, created at the first call with mode 0600."""
    return read_or_create_secret(settings.inference_token_file, lambda: secrets.token_urlsafe(32))
