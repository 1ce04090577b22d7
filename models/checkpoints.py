"""Read and write draft checkpoints atomically.

A folder holds `model.safetensors`, `config.json` (`speculoos_method`, the network's config, `base_sha256`, `training`,
and `base_path` when written by the library: a folder, relative to this one or absolute), `README.md` (a model card) and
`SHA256SUMS` (`sha256sum -c SHA256SUMS` checks it). No torch at import."""

import json
import logging
import shutil
import tempfile
from pathlib import Path
from typing import Any

from models.archive import WEIGHTS, checkpoint_problems
from models.identity import read_json, tensors_of
from models.methods import METHODS, find_method
from models.starter import STARTER_HUB_ID, STARTER_WEIGHTS_SHA256
from speculoos.checksums import CHECKSUM_FILE, ChecksumCache, checksums_text
from speculoos.errors import BadInput, Damaged, NotFound, Unsupported
from speculoos.files import new_folder, sync_file
from speculoos.markdown import (
    block_quotation,
    code_span,
    escape_text,
    fenced_code_block,
    markdown_section,
    one_line,
    yaml_scalar,
)
from speculoos.private import apply_umask

FORMAT = 1
SPECULOOS_KEYS = (
    *("speculoos_method", "speculoos_format", "base", "base_path", "base_sha256"),
    *("training", "drafting", "tuning"),
)
"""Keys of config.json that do not describe the network."""
KEY_TYPES = {
    **dict.fromkeys(("speculoos_method", "base_path"), str),
    **dict.fromkeys(("training", "drafting", "tuning"), dict),
    "speculoos_format": int,
}
TYPE_NAMES = {str: "text", int: "number", dict: "table"}
CONFIG, CARD = "config.json", "README.md"
RESTORE_HINT = "Download or train the checkpoint again; `speculoos verify` checks all."
log = logging.getLogger(__name__)


def draft_class(method: str) -> Any:
    return find_method(method).load("network")


def read_config(folder: str | Path) -> dict[str, Any]:
    """The checkpoint's config.json. Raises NotFound, BadInput or Unsupported."""
    path = Path(folder) / CONFIG
    if not path.exists():
        raise NotFound(f"{folder} is not a draft: it has no {CONFIG}.")
    data = read_json(path)
    if "speculoos_method" not in data:
        raise BadInput(f"{path} has no key speculoos_method, so it is not a draft made by Speculoos.")
    for key, kind in KEY_TYPES.items():
        if not isinstance(data.get(key, kind()), kind):
            raise BadInput(f"{path}: {key} is not a {TYPE_NAMES[kind]}; download or train the draft again.")
    if data.get("speculoos_format", FORMAT) > FORMAT:
        raise Unsupported(f"{path} was written by a newer Speculoos (format {data['speculoos_format']}); update.")
    return data


def save_draft(
    folder: str | Path, draft: Any, info: dict[str, Any], dtype: str = "", tensors: dict[str, Any] | None = None
) -> Path:
    """Write `draft` to `folder` atomically, replacing an existing folder, and return it. `info` goes to
    config.json and the card; its keys are `base` (name) and those of `_write_files`. `dtype` ("bfloat16") casts the
    weights; default: unchanged. `tensors`: weights to write instead of the current ones of `draft`."""
    folder = Path(folder)
    with new_folder(folder, replace=True) as building:
        _write_files(building, draft, info, dtype, tensors)
    return folder


def save_draft_in_place(
    folder: str | Path, draft: Any, info: dict[str, Any], dtype: str = "", tensors: dict[str, Any] | None = None
) -> None:
    """Write the files of `save_draft` one by one into an existing folder; its other files stay. SHA256SUMS comes last,
    so that a partly replaced checkpoint is detected as damaged."""
    folder = Path(folder)
    with tempfile.TemporaryDirectory(prefix=".draft-", dir=folder) as name:
        _write_files(Path(name), draft, info, dtype, tensors)
        for path in sorted(Path(name).iterdir(), key=lambda path: path.name == CHECKSUM_FILE):
            path.chmod(apply_umask(0o666))
            sync_file(path)
            path.replace(folder / path.name)


def load_draft(
    folder: str | Path, base: Any, base_sha256: str = "", sha256: str = "", checksum_cache: ChecksumCache | None = None
) -> Any:
    """The draft in `folder` for `base`, in the base's dtype and device, in evaluation mode. Verifies the files against
    SHA256SUMS and the weights against `sha256` (from the database); `checksum_cache` caches checksums. If `base_sha256`
    differs from the one in the checkpoint, a warning is logged and stored in `draft.notices`. Raises Damaged, or
    Unsupported when sizes or the vocabulary do not match the base."""
    folder, config = Path(folder), read_config(folder)
    verify_sums(folder, sha256, checksum_cache)
    draft = _load_module(folder, config, base).eval().requires_grad_(False)
    draft.drafting = config.get("drafting", {})
    draft.notices = base_notices(config, base_sha256)
    return draft


def is_checkpoint(folder: str | Path) -> bool:
    """Whether `folder` holds a Speculoos draft rather than another model. Raises BadInput for a broken config.json."""
    return bool(read_json(Path(folder) / CONFIG).get("speculoos_method"))


def load_draft_for_training(folder: str | Path, base: Any, method: str) -> Any:
    """The draft in `folder` in fp32, to continue training; the same parameters are frozen as in a new draft. Raises
    BadInput when it is neither a draft of `method` nor of one that it starts from, Unsupported when it does not match
    the base."""
    config = read_config(folder)
    if (kind := config["speculoos_method"]) not in (method, *find_method(method).starts_from):
        raise BadInput(f"draft_path: {folder} holds a draft of the method {kind}, not {method}; train it as {kind}.")
    verify_sums(folder)
    return _load_module(Path(folder), config, base, full=True)


def update_draft_config(folder: str | Path, **changes: Any) -> None:
    """Change keys of the checkpoint's config.json, such as `drafting` (default options of
    `decoding.drafters.make_drafter`) and `tuning` (how these were measured). The folder is replaced atomically, with a
    new card and checksums."""
    folder = Path(folder)
    with new_folder(folder, replace=True) as building:
        shutil.copytree(folder, building, dirs_exist_ok=True)
        _write_texts(building, {**read_config(folder), **changes})


def verify_sums(folder: str | Path, sha256: str = "", checksum_cache: ChecksumCache | None = None) -> None:
    """Check the files against SHA256SUMS, if present, and the weights against `sha256`, if given. Raises Damaged naming
    the first file that differs or is missing."""
    for file, problem in checkpoint_problems(folder, sha256, checksum_cache).items():
        raise Damaged(f"{Path(folder) / file} {problem}.", RESTORE_HINT)


def _write_files(folder: Path, draft: Any, info: dict[str, Any], dtype: str, tensors: dict[str, Any] | None) -> None:
    import torch
    from safetensors.torch import save_file

    kind = getattr(torch, dtype) if dtype else None
    tensors = {
        name: value.detach().to("cpu", kind if value.is_floating_point() else None).contiguous().clone()
        for name, value in (stored_tensors(draft) if tensors is None else tensors).items()
    }
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
    for name, text in getattr(draft, "extra_files", dict)().items():
        (folder / name).write_text(text, encoding="utf-8")
    config = {
        **draft.to_json(),
        "speculoos_method": draft.method,
        "speculoos_format": FORMAT,
        "dtype": next((str(t.dtype).removeprefix("torch.") for t in tensors.values() if t.is_floating_point()), ""),
        "base": info.get("base", ""),
        "base_sha256": info.get("base_sha256", ""),
        "training": {key: info[key] for key in ("dataset", "settings", "figures", "notes", "source") if key in info},
        **{key: info[key] for key in ("base_path", "drafting", "tuning") if info.get(key)},
    }
    _write_texts(folder, config)


def _write_texts(folder: Path, config: dict[str, Any]) -> None:
    parameters = sum(entry.count for entry in tensors_of(folder / WEIGHTS))
    (folder / CONFIG).write_text(json.dumps(config, indent=2, default=str) + "\n", encoding="utf-8")
    (folder / CARD).write_text(_card(config, (folder / WEIGHTS).stat().st_size, parameters), encoding="utf-8")
    files = (path for path in folder.glob("[!.]*") if path.is_file() and path.name != CHECKSUM_FILE)
    (folder / CHECKSUM_FILE).write_text(checksums_text(files), encoding="utf-8")


def _card(config: dict[str, Any], size_bytes: int, parameters: int) -> str:
    """The card as Markdown: base, data, settings and figures of the draft, and how to load it."""
    method, base = config["speculoos_method"], config.get("base") or "unknown"
    training = config.get("training", {})
    starter = config.get("base_sha256") == STARTER_WEIGHTS_SHA256
    copy = f" (a quantized copy of {code_span(STARTER_HUB_ID)})" if starter else ""
    return "\n".join(
        [
            "---\nlibrary_name: speculoos\ntags:\n- speculative-decoding\n- " + yaml_scalar(method) + "\n---",
            f"# {METHODS[method].noun if method in METHODS else escape_text(method)} for {escape_text(base)}",
            f"{parameters:,} stored parameters, {config.get('dtype')}, {size_bytes / 1e6:.1f} MB.\n",
            f"Base model: {code_span(base)}{copy}, "
            f"sha256 of its weights {code_span(config.get('base_sha256') or 'not recorded')}. "
            "With another base, or another quantization of it, fewer draft tokens are accepted.\n",
            "The base verifies every draft token, so its greedy output does not change.\n",
            *markdown_section("Source", training.get("source")),
            *markdown_section("Data", training.get("dataset")),
            *markdown_section("Settings", training.get("settings")),
            *markdown_section("Figures", training.get("figures")),
            *markdown_section("Drafting", _drafting(config)),
            *(["## Notes\n", block_quotation(training["notes"]) + "\n"] if training.get("notes") else []),
            "## How to load\n",
            "With Speculoos installed (exports for inference servers have their own instructions):\n",
            fenced_code_block(_loading(config, base), "python"),
            "Check the files with `sha256sum -c SHA256SUMS`.\n",
        ]
    )


def _loading(config: dict[str, Any], base: str) -> str:
    if config.get("base_path"):
        return 'import speculoos\n\ndraft = speculoos.load("THIS_FOLDER")'
    return (
        "from models.base import load_base\nfrom models.checkpoints import load_draft\n\n"
        f'base = load_base("PATH_OF_BASE")  # {one_line(base)}\ndraft = load_draft("THIS_FOLDER", base)'
    )


def _drafting(config: dict[str, Any]) -> dict[str, Any]:
    if not config.get("drafting"):
        return {}
    tuning = dict(config.get("tuning", {}))
    if sizes := tuning.get("sizes"):
        each = (f"{s['nodes']}: τ {s['expected_tau']:.2f}, {s['speedup']:.2f} ×" for s in sizes)
        tuning["sizes"] = "nodes, expected τ and speedup: " + "; ".join(each)
    return {"options": json.dumps(config["drafting"])} | tuning


def stored_tensors(draft: Any) -> dict[str, Any]:
    """The tensors of a draft to store, by name, without those of the base."""
    return draft.tensors() if hasattr(draft, "tensors") else draft.state_dict()


def _load_module(folder: Path, config: dict[str, Any], base: Any, full: bool = False) -> Any:
    """The module described by `config` with the weights of `folder`, in the base's dtype or, if `full`, in fp32."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    method, (vocabulary, hidden) = find_method(config["speculoos_method"]), base.lm_head.weight.shape
    expected = {"vocab_size": (config.get("vocab_size"), vocabulary)}
    if method.shares_hidden_size:
        expected["hidden_size"] = config.get("target_hidden_size") or config.get("hidden_size"), hidden
    for key, (size, actual) in expected.items():
        if size not in (None, actual):
            raise Unsupported(
                f"The draft in {folder} was trained for a base with {key} {size}, this base has {actual}; "
                f"choose the base it names ({config.get('base') or 'unknown'})."
            )
    draft = method.load("network").from_json(config, base)
    draft = draft.float() if full else draft
    path = folder / WEIGHTS
    try:
        tensors = load_file(path)
    except (OSError, SafetensorError) as error:
        raise BadInput(f"{path} cannot be read as safetensors ({error}).") from None
    expected = stored_tensors(draft)
    wrong = [name for name in expected if name not in tensors or tensors[name].shape != expected[name].shape]
    wrong += [name for name in tensors if name not in expected]
    if wrong:
        raise Unsupported(f"{path} does not hold the weights described by its config (first wrong tensor: {wrong[0]}).")
    draft.load_state_dict(tensors, strict=False)
    return draft


def base_notices(config: dict[str, Any], base_sha256: str) -> list[str]:
    """A warning, also logged, when the base in use has other weights than the base the draft was trained on."""
    trained_on = config.get("base_sha256", "")
    if not base_sha256 or not trained_on or base_sha256 == trained_on:
        return []
    notice = (
        f"This draft was trained on a base with weights {trained_on[:12]}…, the one in use has {base_sha256[:12]}…: "
        "the output stays that of the base, but fewer draft tokens may be accepted."
    )
    log.warning(notice)
    return [notice]
