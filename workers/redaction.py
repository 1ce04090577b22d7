"""Keeping secrets out of rows and log files, by the names work knows them under; see speculoos.redaction."""

from speculoos.redaction import MASK, SHORTEST, RedactingStream, redact, secrets

__all__ = ["MASK", "SHORTEST", "RedactingStream", "redact", "secrets"]
