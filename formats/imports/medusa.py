"""Medusa heads of the Medusa repository (both versions), TGI, ModelOpt and vLLM.

The repository's file contains `{head}.{layer}.linear.weight|bias` and, for heads with their own matrix,
`{head}.{layers}.weight`; heads of version 2 use the base model's lm_head. vLLM's names are
`blocks.{head}.layers.{layer}` and `lm_heads.{head}`; its files may have no bias, one matrix for all heads, and a
`token_map`."""

import re
from typing import Any

import torch
from torch import Tensor

from formats.imports.names import HEADS, medusa_name
from formats.imports.source import DraftSource, ImportedDraft, check_vocabulary, fill, same_values
from speculoos.errors import BadInput, Unsupported

BLOCK = re.compile(r"blocks\.(\d+)\.(\d+)\.")
NUM_HEADS = {"medusa": ("medusa_num_heads", "num_medusa_heads"), "vllm-medusa": ("num_heads", "medusa_num_heads")}
NUM_LAYERS = {"medusa": ("medusa_num_layers", "num_medusa_layers"), "vllm-medusa": ("num_hidden_layers",)}


def read_medusa(source: DraftSource) -> ImportedDraft:
    """The heads. Raises BadInput or Unsupported with the key at fault."""
    _drop_base_tensors(source)
    source.rename(medusa_name)
    base, (heads, layers) = source.base, _counts(source)
    _check_counts(source, heads, layers)
    _check_hidden(source)
    rows, tensors = _matrices(source, heads)
    names = [f"blocks.{head}.{layer}.linear.bias" for head in range(heads) for layer in range(layers)]
    if not any(map(source.has, names)):  # vLLM's medusa_fc_bias false; a file has all biases or none
        tensors |= {name: torch.zeros(base.hidden_size) for name in names}
    config: dict[str, Any] = {
        "hidden_size": base.hidden_size,
        "vocab_size": base.vocab_size,
        "medusa_num_heads": heads,
        "medusa_num_layers": layers,
        "medusa_tie_lm_head": rows is None,
    }
    if rows is not None and source.layout == "vllm-medusa" and (rows < base.vocab_size or source.has("token_map")):
        config["draft_vocab_size"] = rows
        tensors["d2t"] = _token_map(source, rows)
    elif rows not in (None, base.vocab_size):
        raise Unsupported(
            f"{source.name}: {source.name_in_file('lm_heads.0.weight')} has {rows} rows and the base model {base.name} "
            f"{base.vocab_size} tokens; choose the base model the heads were trained for."
        )
    return fill("medusa", config, source, tensors)


def _drop_base_tensors(source: DraftSource) -> None:
    names = [name for name in source.entries if name in source.base.entries and not HEADS.match(name)]
    if not names or not any(HEADS.match(name) for name in source.entries):
        return
    for name in names:
        del source.entries[name]
    source.notices.append(
        f"{names[0]} and {len(names) - 1} more tensors of the base model are in the file and were ignored; if that "
        "base model was trained together with its heads (Medusa-2), add it as a model and import the heads for it."
    )


def _counts(source: DraftSource) -> tuple[int, int]:
    """Number of heads, and of blocks in each, from the tensors. Raises BadInput if a head is missing."""
    blocks: dict[int, set[int]] = {}
    for name in source.entries:
        if match := BLOCK.match(name):
            blocks.setdefault(int(match[1]), set()).add(int(match[2]))
    matrices = {int(name.split(".")[1]) for name in source.entries if re.fullmatch(r"lm_heads\.\d+\.weight", name)}
    numbers = sorted(blocks) or sorted(matrices)
    if numbers != list(range(len(numbers))):
        missing = next(i for i in range(len(numbers) + 1) if i not in numbers)
        raise BadInput(f"{source.name}: tensors of head {missing} are missing; download the heads again.")
    layers = max((len(layers) for layers in blocks.values()), default=0)
    return len(numbers), layers


def _check_counts(source: DraftSource, heads: int, layers: int) -> None:
    """Compare the config's counts with the tensors. Configs published with the Medusa repository have fewer heads than
    their files, so more heads are accepted with a notice. Raises BadInput for other differences."""
    fields, layout = source.fields, source.layout
    for keys, count in ((NUM_HEADS[layout], heads), (NUM_LAYERS[layout], layers)):
        key = next((key for key in keys if fields.get(key) is not None), "")
        stated = fields.number(key) if key and (fields.get(key) or count) else count
        if stated == count:
            continue
        if keys == NUM_HEADS["medusa"] and stated < count:
            source.notices.append(f"{key}: config.json says {stated}, the file has {count} heads; all were imported.")
            continue
        raise BadInput(
            f"{source.config_name}: {key} is {stated}, but the tensors are of {count}; "
            "restore the draft's original config.json."
        )


def _check_hidden(source: DraftSource) -> None:
    name = next((n for n in ("blocks.0.0.linear.weight", "lm_heads.0.weight") if source.has(n)), "lm_heads.0.weight")
    width = source.shape(name)[-1]
    stated = source.fields.number("hidden_size", width)
    keys = (f"{source.config_name}: hidden_size", f"{source.name}: the width of {source.name_in_file(name)}")
    for key, value in zip(keys, (stated, width), strict=True):
        if value != source.base.hidden_size:
            raise Unsupported(
                f"{key} is {value}, the base model {source.base.name} has hidden_size {source.base.hidden_size}; "
                "choose the base model the heads were trained for."
            )
    if not source.has("token_map") and source.fields.get("truncated_vocab_size") is None:
        check_vocabulary(source)


def _matrices(source: DraftSource, heads: int) -> tuple[int | None, dict[str, Tensor]]:
    """Rows of the output matrices (None: the heads share the base model's lm_head), and copies of a shared matrix."""
    single = next((name for name in ("lm_head.weight", "lm_heads.0.weight") if source.has(name)), "")
    several = single == "lm_heads.0.weight" and not source.fields.flag("original_lm_head")
    if not single:
        return None, {}
    rows = source.shape(single)[0]
    if several:
        return rows, {}
    shared = source.take(single, (rows, source.base.hidden_size))
    if source.base.head is not None and same_values(shared, source.base.head):
        return None, {}
    return rows, {f"lm_heads.{head}.weight": shared for head in range(heads)}


def _token_map(source: DraftSource, rows: int) -> Tensor:
    """Offsets `d2t` [rows]: column i is token i + d2t[i]. Without a map, columns are the first tokens."""
    if not source.has("token_map"):
        if (stated := source.fields.get("truncated_vocab_size")) != rows:
            raise BadInput(
                f"{source.name}: the tensor token_map is missing: the heads have {rows} rows, the base model "
                f"{source.base.name} {source.base.vocab_size} tokens, and truncated_vocab_size is {stated}."
            )
        return torch.zeros(rows, dtype=torch.int64)
    ids = source.take("token_map", (rows,)).long()
    if int(ids.min()) < 0 or int(ids.max()) >= source.base.vocab_size or len(ids.unique()) != rows:
        raise BadInput(
            f"{source.name}: token_map: expected {rows} different tokens of the base model's {source.base.vocab_size}; "
            "download the heads again."
        )
    return ids - torch.arange(rows)
