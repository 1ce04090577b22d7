"""The token with which programs of this home folder authenticate at the inference server."""

import secrets

from speculoos.files import secret
from speculoos.settings import Settings


def make_token(settings: Settings) -> str:
    """The token in home/secrets/inference-token, created at the first call with mode 0600."""
    return secret(settings.inference_token_file, lambda: secrets.token_urlsafe(32))
