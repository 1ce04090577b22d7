"""A tokenizer as llama.cpp reads it from a GGUF file: byte-level BPE (`gpt2`), or a SentencePiece BPE (`llama`). No
transformers at import.

Sources: src/llama-vocab.cpp of llama.cpp (the patterns of each `tokenizer.ggml.pre`), gguf.constants (token types)."""

from pathlib import Path
from typing import Any

from models.identity import read_json
from speculoos.errors import Unsupported

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
"""Token types."""
WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
MIXED_CASE = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+%s|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*%s"
)
SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
PLAIN = rf"{WORDS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|%s| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{SPACES}"
PATTERNS = {
    PLAIN % r"\p{N}{1,3}": "dbrx",
    PLAIN % r"\p{N}": "qwen2",
    MIXED_CASE % ("", "") + rf"|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{SPACES}": "tekken",
    MIXED_CASE % (f"{WORDS}?", f"{WORDS}?") + rf"|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{SPACES}": "gpt-4o",
}
"""{pattern that splits a text before byte-level BPE: its name in llama.cpp}."""
WHOLE_WORDS = {"dbrx": "llama-bpe", "tekken": "tekken"}
"""Names for tokenizers that take a word that is a token as it is (`ignore_merges`)."""


def tokenizer_reason(folder: Path) -> str:
    """One sentence if llama.cpp cannot have this model folder's tokenizer, else "". Reads tokenizer.json only."""
    data = read_json(folder / "tokenizer.json")
    if not data:
        return "It has no tokenizer.json, from which the GGUF file's tokenizer is written."
    try:
        _family(data)
    except Unsupported as error:
        return str(error)
    return ""


def tokenizer_keys(folder: Path, rows: int) -> dict[str, Any]:
    """The `tokenizer.*` keys of a GGUF file for a model with `rows` embeddings; ids without a token are unused. Raises
    Unsupported for a tokenizer that llama.cpp does not have, or with more tokens than embeddings."""
    import json

    from models.tokenizer import load_tokenizer

    if reason := tokenizer_reason(folder):
        raise Unsupported(f"{folder}: {reason}")
    tokenizer = load_tokenizer(folder)
    data = json.loads(tokenizer.backend_tokenizer.to_str())
    kind, pre = _family(data)
    vocabulary, merges = data["model"]["vocab"], _merges(data)
    added = {token["id"]: token for token in data["added_tokens"]}
    largest = max([*vocabulary.values(), *added])
    if largest >= rows:
        raise Unsupported(f"{folder}: token {largest} has no embedding (there are {rows}).")
    tokens, types = [f"[PAD{index}]" for index in range(rows)], [UNUSED] * rows
    unknown = data["model"].get("unk_token")
    for text, index in vocabulary.items():
        is_byte = kind == "llama" and len(text) == 6 and text.startswith("<0x")
        tokens[index], types[index] = text, UNKNOWN if text == unknown else BYTE if is_byte else NORMAL
    for index, token in added.items():
        tokens[index] = token["content"]
        types[index] = CONTROL if token["special"] else USER_DEFINED
        if kind == "llama" and token["content"] == unknown:
            types[index] = UNKNOWN
    keys: dict[str, Any] = {
        "tokenizer.ggml.model": kind,
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
    }
    if kind == "llama":
        keys["tokenizer.ggml.scores"] = _scores(tokens, merges)
        keys["tokenizer.ggml.add_space_prefix"] = _prefix(data)
    else:
        keys["tokenizer.ggml.merges"] = [f"{left} {right}" for left, right in merges]
    return keys | _special(tokenizer, folder, rows)


def _special(tokenizer: Any, folder: Path, rows: int) -> dict[str, Any]:
    """Ids of special tokens, whether a text begins and ends with them, and the chat template. llama.cpp also ends at
    `eot`, for a model that has two end tokens."""
    from models.tokenizer import read_eos_ids

    ids = {"bos": tokenizer.bos_token_id, "eos": tokenizer.eos_token_id, "padding": tokenizer.pad_token_id}
    ids["unknown"] = tokenizer.unk_token_id
    others = sorted(index for index in read_eos_ids(folder, tokenizer) - {ids["eos"]} if index < rows)
    if ids["eos"] is None and others:
        ids["eos"] = others.pop(0)
    if others:
        ids["eot"] = others[0]
    keys: dict[str, Any] = {
        f"tokenizer.ggml.{name}_token_id": index for name, index in ids.items() if index is not None
    }
    with_special, plain = tokenizer("a")["input_ids"], tokenizer("a", add_special_tokens=False)["input_ids"]
    added = len(with_special) - len(plain)
    keys["tokenizer.ggml.add_bos_token"] = bool(added) and with_special[0] == ids["bos"]
    keys["tokenizer.ggml.add_eos_token"] = bool(added) and with_special[-1] == ids["eos"]
    template = tokenizer.chat_template
    if isinstance(template, dict):
        template = template.get("default") or next(iter(template.values()), "")
    return keys | ({"tokenizer.chat_template": template} if template else {})


def _family(data: dict[str, Any]) -> tuple[str, str]:
    """(`tokenizer.ggml.model`, `tokenizer.ggml.pre`) of a tokenizer.json. Raises Unsupported."""
    model = data.get("model") or {}
    if model.get("type", "BPE") != "BPE" or "merges" not in model:
        raise Unsupported(f"Its tokenizer is {model.get('type')}, and GGUF exports support BPE only.")
    steps = _steps(data.get("pre_tokenizer"), "pretokenizers")
    if steps and steps[-1]["type"] == "ByteLevel":
        return "gpt2", _pre(steps, data)
    metaspace = all(step["type"] == "Metaspace" for step in steps)
    if model.get("byte_fallback") and metaspace:
        return "llama", "default"
    raise Unsupported(
        "Its tokenizer is neither byte-level BPE nor SentencePiece with bytes; llama.cpp has no other BPE."
    )


def _pre(steps: list[dict[str, Any]], data: dict[str, Any]) -> str:
    """llama.cpp's name for the pre-tokenizer of a byte-level BPE. Raises Unsupported for one that it does not have."""
    last, whole = steps[-1], bool(data["model"].get("ignore_merges"))
    normalizers = {step["type"] for step in _steps(data.get("normalizer"), "normalizers")} - {"NFC"}
    kinds = [step["type"] for step in steps[:-1]]
    name = ""
    if normalizers or last.get("add_prefix_space"):
        pass
    elif last.get("use_regex", True) and not whole:
        digits = kinds == ["Digits"] and steps[0].get("individual_digits")
        name = "smollm" if digits else "gpt-2" if not kinds else ""
    elif not last.get("use_regex", True) and kinds == ["Split"] and steps[0]["behavior"] == "Isolated":
        name = PATTERNS.get((steps[0].get("pattern") or {}).get("Regex", ""), "")
        name = WHOLE_WORDS.get(name, "") if whole else name if name != "tekken" else ""
    if not name:
        raise Unsupported(
            "Its tokenizer splits text in a way that is not known here by llama.cpp's name (tokenizer.ggml.pre); "
            "convert the model with llama.cpp's convert_hf_to_gguf.py."
        )
    return name


def _steps(section: dict[str, Any] | None, key: str) -> list[dict[str, Any]]:
    """The steps of a normalizer or pre-tokenizer; a sequence is flattened."""
    if not section:
        return []
    if section["type"] != "Sequence":
        return [section]
    return [step for inner in section[key] for step in _steps(inner, key)]


def _merges(data: dict[str, Any]) -> list[tuple[str, str]]:
    pairs = (merge.split(" ", 1) if isinstance(merge, str) else merge for merge in data["model"]["merges"])
    return [(left, right) for left, right in pairs]


def _scores(tokens: list[str], merges: list[tuple[str, str]]) -> list[float]:
    """SentencePiece merges the pair whose result has the largest score first: the order of the merges."""
    ranks: dict[str, int] = {}
    for rank, (left, right) in enumerate(merges):
        ranks.setdefault(left + right, rank)
    return [-float(ranks.get(token, len(merges))) for token in tokens]


def _prefix(data: dict[str, Any]) -> bool:
    """Whether a text gets a leading space."""
    normalizers = _steps(data.get("normalizer"), "normalizers")
    metaspaces = _steps(data.get("pre_tokenizer"), "pretokenizers")
    return any(step["type"] == "Prepend" for step in normalizers) or any(
        step.get("prepend_scheme", "always") != "never" for step in metaspaces
    )
