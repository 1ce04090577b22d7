"""Speculoos checkpoints from another installation: a folder or an unpacked zip."""

from collections.abc import Mapping
from math import isfinite
from typing import Any

from formats.imports.base import BaseOutline
from formats.imports.draft import ImportedDraft, check_size, fill
from formats.imports.source import DraftSource
from models.checkpoints import SPECULOOS_KEYS, read_config, verify_sums
from models.methods import find_method


def read(source: DraftSource, base: BaseOutline, layout: str) -> ImportedDraft:
    """The draft with its training metadata and tuned settings. Raises Damaged if its SHA256SUMS do not match."""
    config = read_config(source.folder)
    verify_sums(source.folder)
    method = config["speculoos_method"]
    _check_sizes(source, base, find_method(method).shares_hidden_size)
    shape = {key: value for key, value in config.items() if key not in (*SPECULOOS_KEYS, "dtype")}
    draft = fill(method, shape, source, base, {})
    training = config.get("training", {})
    base_sha256 = str(config.get("base_sha256", ""))
    draft.info = {**training, "figures": figures(training.get("figures")), "base_sha256": base_sha256}
    draft.drafting = {key: config[key] for key in ("drafting", "tuning") if config.get(key)}
    return draft


def figures(values: Any) -> dict[str, Any]:
    """The valid values of a third party's figures: finite numbers, lists of them, short strings."""
    if not isinstance(values, Mapping):
        return {}
    return {str(key)[:80]: value for key, value in values.items() if _is_figure(value)}


def _is_figure(value: Any) -> bool:
    if isinstance(value, str):
        return len(value) <= 200
    if isinstance(value, list):
        return len(value) <= 100 and all(isinstance(item, int | float) and isfinite(item) for item in value)
    return isinstance(value, int | float) and isfinite(value)


def _check_sizes(source: DraftSource, base: BaseOutline, shares_hidden_size: bool) -> None:
    fields = source.fields
    check_size(source, base, "vocab_size", fields.get("vocab_size", base.vocab_size), base.vocab_size)
    if shares_hidden_size:
        width = fields.get("target_hidden_size") or fields.get("hidden_size", base.hidden_size)
        check_size(source, base, "hidden_size", width, base.hidden_size)
