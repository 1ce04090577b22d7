"""Who goes first where the pages and the model share processors."""

import os

NICE = 5
"""Steps below the pages: a third of their share, and all that they leave."""


def give_way(device: str) -> None:
    """Let the calling thread, and those it starts, come after the pages when it computes on the processor itself.

    Opening a page takes many short turns, and each would wait for the end of a turn of every thread that computes.
    """
    if device == "cpu":
        os.nice(NICE)
