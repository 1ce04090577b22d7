"""No drafter: every step is the base's own next token."""

from decoding.drafters.base import Speculative


class PlainDrafter(Speculative):
    """Trees of the root alone."""

    name, kind, own = "none", "plain", "plain"
