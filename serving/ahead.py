"""Modules that loading a base needs, imported while nobody has asked yet: the first question would wait for them."""

import importlib
import logging

log = logging.getLogger(__name__)
MODULES = (
    "models.base",
    "models.checkpoints",
    "decoding.probe",
    "decoding.target",
    "decoding.drafters",
    "transformers.models.auto.modeling_auto",
    "transformers.models.auto.tokenization_auto",
    "transformers.models.llama.modeling_llama",
    "transformers.generation.utils",
)
"""Those of the starter's family; others bring their own as they are loaded."""


def import_ahead() -> None:
    """Import MODULES. The device's thread does so before anything else."""
    for name in MODULES:
        try:
            importlib.import_module(name)
        except ImportError as error:  # a later transformers may have moved it: the first question waits then
            log.debug("%s is not imported ahead: %s", name, error)
