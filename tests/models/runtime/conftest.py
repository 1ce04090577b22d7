"""The tiny bases of every family, as the tests of decoding have them."""

from tests.decoding.conftest import base, base_of

__all__ = ["base", "base_of"]
