"""No drafter: every step is the base's own next token."""

from decoding.drafters.base import Drafter


class PlainDrafter(Drafter):
    """Trees of the root alone."""

    name, kind, own = "none", "plain", "plain"
