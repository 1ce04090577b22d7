"""Imported into a worker's child by SPECULOOS_WORK_MODULES; limits its memory to its libraries and ROOM."""

import os
import resource

import accelerate  # noqa: F401
import psutil
import torch  # noqa: F401
import transformers  # noqa: F401

ROOM = 900 * 2**20
"""Less than the sixteen heads of test_no_memory take with gradients and AdamW's moments (16 × 256 × 20,000 × 16 bytes,
1.3 GB), more than its one head does with the stacks and arenas of new threads."""

if "SPECULOOS_ATTEMPT" in os.environ:  # a worker's child, not the worker
    used = psutil.Process().memory_info().vms
    resource.setrlimit(resource.RLIMIT_AS, (used + ROOM, resource.getrlimit(resource.RLIMIT_AS)[1]))
