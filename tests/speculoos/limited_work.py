"""Functions for a limited child to call."""

import os

from speculoos.errors import BadInput


def refuse() -> None:
    raise BadInput("There is no JSON here.", "Write some.")


def environment() -> dict[str, str]:
    return dict(os.environ)
