"""CPU priority of model threads below that of the pages."""

import os

NICE = 5  # niceness of threads that compute: about a third of the pages' CPU share when both are busy


def lower_priority(device: str) -> None:
    """Lower the priority of the calling thread, and of threads it starts, if it computes on the CPU.

    Serving a page takes many short time slices, each of which would wait for the slices of all computing threads.
    """
    if device == "cpu":
        os.nice(NICE)
