"""Plain decoding: every step emits one token of the base model."""

from decoding.drafters.base import Drafter


class PlainDrafter(Drafter):
    """Proposes trees with only a root."""

    name, kind, own = "none", "plain", "plain"
