"""Imported into a worker's child by SPECULOOS_WORK_MODULES: leaves it a few hundred megabytes beyond its libraries."""

import resource

import accelerate  # noqa: F401
import psutil
import torch  # noqa: F401
import transformers  # noqa: F401

ROOM = 600 * 2**20

used = psutil.Process().memory_info().vms
resource.setrlimit(resource.RLIMIT_AS, (used + ROOM, resource.getrlimit(resource.RLIMIT_AS)[1]))
