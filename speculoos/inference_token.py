"""The token that programs of this home show the inference server."""

import secrets

from speculoos.files import secret
from speculoos.settings import Settings


def make_token(settings: Settings) -> str:
    """The token in home/secrets/inference-token, made at the first start, readable by its owner only."""
    return secret(settings.inference_token_file, lambda: secrets.token_urlsafe(32))
