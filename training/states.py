"""Resumable states: a folder `state-<step>` with the draft's and the optimizer's tensors and `state.json`.

Written to a temporary name and renamed, so a folder with that name is whole. Random draws and the data order depend
only on the seed and the step (see `training.loop`), so the step is the data position and no generator is stored.
Torch is imported only to read and write tensors.
"""

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

from models.checkpoints import write_synced
from models.files import sync
from speculoos.errors import BadInput, Unavailable

DRAFT, OPTIMIZER, STATE = "draft.safetensors", "optimizer.safetensors", "state.json"
NAME = re.compile(r"state-(\d+)$")


def all_states(folder: str | Path) -> list[Path]:
    """Whole states in `folder`, oldest first."""
    found = [p for p in Path(folder).glob("state-*") if NAME.match(p.name) and (p / STATE).exists()]
    return sorted(found, key=lambda p: int(NAME.match(p.name)[1]))


def latest_state(folder: str | Path | None) -> Path | None:
    """The newest state in `folder`, or `folder` itself if it is one; None when there is nothing to go on from."""
    if folder is None:
        return None
    folder = Path(folder)
    if NAME.match(folder.name) and (folder / STATE).exists():
        return folder
    states = all_states(folder) if folder.is_dir() else []
    return states[-1] if states else None


def save_state(out_dir: Path, draft: dict[str, Any], moments: dict[str, Any], facts: dict[str, Any], keep: int) -> Path:
    """Write state-<facts["step"]> and remove all but the newest `keep`. Raises Unavailable when the disk is full.

    `draft` and `moments` (see `optimizer_tensors`) are whole tensors.
    """
    from safetensors.torch import save_file

    final = out_dir / f"state-{facts['step']}"
    temporary = out_dir / f".{final.name}.{os.getpid()}.tmp"
    shutil.rmtree(temporary, ignore_errors=True)
    check_room(out_dir, sum(t.numel() * t.element_size() for t in [*draft.values(), *moments.values()]))
    temporary.mkdir(parents=True)
    try:
        for tensors, name in ((draft, DRAFT), (moments, OPTIMIZER)):
            save_file({k: v.detach().cpu().contiguous() for k, v in tensors.items()}, temporary / name)
            sync(temporary / name)
        write_synced(temporary / STATE, json.dumps(facts, indent=2))
        shutil.rmtree(final, ignore_errors=True)
        temporary.rename(final)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    for old in all_states(out_dir)[:-keep]:
        shutil.rmtree(old, ignore_errors=True)
    return final


def remove_scratch(folder: Path) -> None:
    """What a run that was killed left in `folder` and nobody reads again: kept features, half-written states."""
    for pattern in (".features-*", ".state-*.tmp"):
        for path in folder.glob(pattern):
            shutil.rmtree(path, ignore_errors=True)


def read_facts(state: Path) -> dict[str, Any]:
    try:
        return json.loads((state / STATE).read_text())
    except (OSError, json.JSONDecodeError) as error:
        raise BadInput(f"{state} cannot be resumed from ({error}); start the training anew.") from None


def load_state(state: Path, draft: Any, optimizer: Any) -> None:
    """Put the stored tensors back into `draft` (a module) and `optimizer`, in place, sharded where these are."""
    from safetensors.torch import load_file

    from training.sharding import load_tensors

    missing = load_tensors(draft, load_file(state / DRAFT))
    if missing.unexpected_keys:
        raise BadInput(f"{state} belongs to a draft of another shape; start the training anew.")
    restore_optimizer(optimizer, load_file(state / OPTIMIZER))


def check_same(facts: dict[str, Any], now: dict[str, Any], state: Path) -> None:
    """A state goes on only with the `config`, and with what it was `made_of` (base, data), that shaped it; how long and
    how often to report may change, and so may the number of `processes` where `accumulate` makes up for it.
    Raises BadInput naming what differs."""
    then, config = facts["config"], now["config"]
    before, processes = facts.get("processes", now["processes"]), now["processes"]
    if then["accumulate"] * before != config["accumulate"] * processes:
        raise BadInput(
            f"accumulate: {state} was made with {then['accumulate']} batches in each of {before} processes, "
            f"not {config['accumulate']} in each of {processes}; their product must stay the same."
        )
    free = {"epochs", "max_steps", "max_minutes", "patience", "log_every", "eval_every", "save_every", "keep_last"}
    free |= {"samples", "device", "cache_features_mb", "cache_disk_gb", "save_dtype", "accumulate"}
    then, wanted = {**then, **facts.get("made_of", {})}, {**config, **now["made_of"]}
    for name, value in wanted.items():
        if name not in free and not _alike(name, then.get(name, value), value):
            raise BadInput(
                f"{name}: {state} was made with {then[name]!r}, not {value!r}; start a new training for that."
            )


def _alike(name: str, then: Any, value: Any) -> bool:
    """Folders by their last names: those before change when a home is moved."""
    if name != "draft_path":
        return then == value
    return Path(then).parts[-3:] == Path(value).parts[-3:]


def optimizer_tensors(optimizer: Any) -> dict[str, Any]:
    """The optimizer's moments as {"<parameter number>.<name>": tensor}, sharded where they are; parameters in the
    order of its groups."""
    import torch

    found = {}
    for number, parameter in enumerate(_parameters(optimizer)):
        for name, value in optimizer.state.get(parameter, {}).items():
            tensor = value if torch.is_tensor(value) else torch.tensor(float("nan") if value is None else value)
            found[f"{number}.{name}"] = tensor
    return found


def restore_optimizer(optimizer: Any, tensors: dict[str, Any]) -> None:
    from training.sharding import placed

    parameters = _parameters(optimizer)
    for key, value in tensors.items():
        number, name = key.split(".", 1)
        parameter = parameters[int(number)]
        optimizer.state[parameter][name] = value if name == "step" else placed(value, parameter)


def check_room(folder: Path, needed: int) -> None:
    """Raise Unavailable unless the disk takes `needed` bytes and a tenth more."""
    folder.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(folder).free
    if free < needed * 1.1:
        raise Unavailable(
            f"The disk of {folder} has {free / 1e6:,.1f} MB free, this checkpoint needs {needed * 1.1 / 1e6:,.1f} MB.",
            "Make room, then retry: it goes on from the last saved state; a lower keep_last needs less.",
        )


def _parameters(optimizer: Any) -> list[Any]:
    return [p for group in optimizer.param_groups for p in group["params"]]
