"""The tiny bases of every family, shared with the tests of decoding."""

from tests.decoding.conftest import base, base_of

__all__ = ["base", "base_of"]
