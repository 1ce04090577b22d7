"""Medusa heads of the Medusa repository (both versions), TGI, ModelOpt and vLLM.

The repository's file holds `{head}.{layer}.linear.weight|bias` and, for heads with a matrix of their own,
`{head}.{layers}.weight`; heads of its version 2 have none and score with the base's head. vLLM calls the same
`blocks.{head}.layers.{layer}` and `lm_heads.{head}`, may have no bias, one matrix for all heads, and a `token_map`.
"""

import re
from typing import Any

import torch
from torch import Tensor

from formats.imports.base import BaseOutline
from formats.imports.draft import ReadDraft, check_vocabulary, fill
from formats.imports.names import HEADS, medusa_name
from formats.imports.source import DraftSource, same_values
from speculoos.errors import BadInput, Unsupported

BLOCK = re.compile(r"blocks\.(\d+)\.(\d+)\.")
NUM_HEADS = {"medusa": ("medusa_num_heads", "num_medusa_heads"), "vllm-medusa": ("num_heads", "medusa_num_heads")}
NUM_LAYERS = {"medusa": ("medusa_num_layers", "num_medusa_layers"), "vllm-medusa": ("num_hidden_layers",)}


def read(source: DraftSource, base: BaseOutline, layout: str) -> ReadDraft:
    """The heads. Raises BadInput or Unsupported, naming the key that is at fault."""
    notices = _leave_base(source, base)
    source.rename(medusa_name)
    heads, layers = _counts(source)
    notices += _check_counts(source, heads, layers, layout)
    _check_hidden(source, base)
    given: dict[str, Tensor] = _zero_biases(source, heads, layers, base.hidden_size)
    config: dict[str, Any] = {"hidden_size": base.hidden_size, "vocab_size": base.vocab_size}
    config |= {"medusa_num_heads": heads, "medusa_num_layers": layers}
    rows, matrices = _matrices(source, base, heads)
    given |= matrices
    config["medusa_tie_lm_head"] = rows is None
    if rows is not None and layout == "vllm-medusa" and (rows < base.vocab_size or source.has("token_map")):
        config["draft_vocab_size"] = rows
        given["d2t"] = _token_map(source, base, rows)
    elif rows not in (None, base.vocab_size):
        raise Unsupported(
            f"{source.name}: {source.their('lm_heads.0.weight')} has {rows} rows and the base {base.name} "
            f"{base.vocab_size} tokens; choose the base the heads were trained for."
        )
    draft = fill("medusa", config, source, base, given)
    draft.notices += notices
    return draft


def _leave_base(source: DraftSource, base: BaseOutline) -> list[str]:
    """Files of a whole model hold the base's tensors too: those are not taken."""
    theirs = [name for name in source.entries if name in base.entries and not HEADS.match(name)]
    if not theirs or not any(HEADS.match(name) for name in source.entries):
        return []
    source.leave(theirs)
    return [
        f"{theirs[0]} and {len(theirs) - 1} more tensors of the base are in the file and were left there; if that base "
        "was trained together with its heads (Medusa-2), add it as a model and match the heads to it."
    ]


def _counts(source: DraftSource) -> tuple[int, int]:
    """Heads and blocks in each, by the tensors. Raises BadInput where heads differ."""
    blocks: dict[int, set[int]] = {}
    for name in source.entries:
        if found := BLOCK.match(name):
            blocks.setdefault(int(found[1]), set()).add(int(found[2]))
    matrices = {int(name.split(".")[1]) for name in source.entries if re.fullmatch(r"lm_heads\.\d+\.weight", name)}
    numbers = sorted(blocks) or sorted(matrices)
    if numbers != list(range(len(numbers))):
        missing = next(i for i in range(len(numbers) + 1) if i not in numbers)
        raise BadInput(f"{source.name}: tensors of head {missing} are missing; fetch the heads again.")
    layers = max((len(found) for found in blocks.values()), default=0)
    return len(numbers), layers


def _check_counts(source: DraftSource, heads: int, layers: int, layout: str) -> list[str]:
    """Hold the config's counts against the tensors. Configs published with the Medusa repository say fewer heads than
    their files have, so more are taken with a notice."""
    fields, notices = source.fields, []
    for keys, count in ((NUM_HEADS[layout], heads), (NUM_LAYERS[layout], layers)):
        key = next((key for key in keys if fields.get(key) is not None), "")
        stated = fields.number(key) if key and (fields.get(key) or count) else count
        if stated == count:
            continue
        if keys == NUM_HEADS["medusa"] and stated < count:
            notices.append(f"{key}: config.json says {stated}, the file holds {count} heads; all were taken.")
            continue
        raise BadInput(
            f"{source.where}: {key} is {stated}, and the tensors are of {count}; "
            "restore the config.json that came with them."
        )
    return notices


def _check_hidden(source: DraftSource, base: BaseOutline) -> None:
    name = next((n for n in ("blocks.0.0.linear.weight", "lm_heads.0.weight") if source.has(n)), "lm_heads.0.weight")
    width = source.shape(name)[-1]
    stated = source.fields.number("hidden_size", width)
    for key, value in ((f"{source.where}: hidden_size", stated), (f"{source.name}: {source.their(name)}", width)):
        if value != base.hidden_size:
            raise Unsupported(
                f"{key} is {value} wide, the base {base.name} has hidden_size {base.hidden_size}; "
                "choose the base the heads were trained for."
            )
    if not source.has("token_map") and source.fields.get("truncated_vocab_size") is None:
        check_vocabulary(source, base)


def _zero_biases(source: DraftSource, heads: int, layers: int, hidden: int) -> dict[str, Tensor]:
    """Blocks without a bias (vLLM's medusa_fc_bias false) as ones with a bias of zero. A file has all or none."""
    names = [f"blocks.{head}.{layer}.linear.bias" for head in range(heads) for layer in range(layers)]
    return {} if any(map(source.has, names)) else {name: torch.zeros(hidden) for name in names}


def _matrices(source: DraftSource, base: BaseOutline, heads: int) -> tuple[int | None, dict[str, Tensor]]:
    """Rows of the output matrices (None: the heads share the base's head), and matrices made here: a single one that
    is not the base's serves every head."""
    single = next((name for name in ("lm_head.weight", "lm_heads.0.weight") if source.has(name)), "")
    several = single == "lm_heads.0.weight" and not source.fields.flag("original_lm_head")
    if not single:
        return None, {}
    rows = source.shape(single)[0]
    if several:
        return rows, {}
    shared = source.take(single, (rows, base.hidden_size))
    if base.head is not None and same_values(shared, base.head):
        return None, {}
    return rows, {f"lm_heads.{head}.weight": shared for head in range(heads)}


def _token_map(source: DraftSource, base: BaseOutline, rows: int) -> Tensor:
    """Offsets `d2t` [rows]: column i is token i + d2t[i]. Without a map the columns are the first tokens."""
    if not source.has("token_map"):
        if (stated := source.fields.get("truncated_vocab_size")) != rows:
            raise BadInput(
                f"{source.name}: the tensor token_map is missing: the heads have {rows} rows, the base {base.name} "
                f"{base.vocab_size} tokens, and truncated_vocab_size is {stated}."
            )
        return torch.zeros(rows, dtype=torch.int64)
    ids = source.take("token_map", (rows,)).long()
    if int(ids.min()) < 0 or int(ids.max()) >= base.vocab_size or len(ids.unique()) != rows:
        raise BadInput(
            f"{source.name}: token_map: expected {rows} different tokens of the base's {base.vocab_size}; "
            "fetch the heads again."
        )
    return ids - torch.arange(rows)
