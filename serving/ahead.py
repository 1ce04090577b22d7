"""Imports the modules for loading a base model at startup, so that the first request does not wait for them."""

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
"""Includes the model code of the starter's family (Llama); other families are imported when loaded."""


def preload_modules() -> None:
    """Import MODULES; the first work of the device's thread."""
    for name in MODULES:
        try:
            importlib.import_module(name)
        except ImportError as error:  # another version of transformers may have moved it; it is then imported later
            log.debug("%s was not imported at startup: %s", name, error)
