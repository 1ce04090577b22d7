"""No drafter: every step is the base's own next token."""

from decoding.drafters.base import Speculative


class PlainDrafter(Speculative):
    name, kind, own = "none", "plain", "plain"
