"""Resumable states: a folder `state-<step>` with the draft's and the optimizer's tensors, `state.json` and checksums.

Written under a temporary name and renamed, so a folder with that name was once complete; SHA256SUMS verify that it
still is, and a resume falls back to the newest undamaged one. Random draws and the data order depend only on the seed
and the step (see `training.loop`), so no generator state is stored. Torch is imported only to read and write tensors.
"""

import json
import re
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from models.checkpoints import stored_tensors
from models.identity import tensors_of
from speculoos.checksums import CHECKSUM_FILE, checksums_text, find_changed_files
from speculoos.errors import BadInput, Damaged, SpeculoosError, Unavailable
from speculoos.files import new_folder

DRAFT, OPTIMIZER, STATE = "draft.safetensors", "optimizer.safetensors", "state.json"
STATE_NAME = re.compile(r"state-(\d+)$")
CHANGEABLE = {"epochs", "max_steps", "max_minutes", "patience", "log_every", "eval_every", "save_every", "keep_last"}
CHANGEABLE |= {"samples", "device", "cache_features_mb", "cache_disk_gb", "save_dtype", "accumulate"}
CHANGEABLE |= {"hidden_states", "hidden_states_ahead", "hidden_states_store"}
"""Settings that a resumed run may change."""


def all_resume_points(folder: str | Path | None) -> list[Path]:
    """Complete states in `folder`, oldest first; `folder` may be a state itself."""
    if folder is None:
        return []
    folder = Path(folder)
    paths = [folder] if STATE_NAME.match(folder.name) else folder.glob("state-*")
    states = [path for path in paths if STATE_NAME.match(path.name) and (path / STATE).exists()]
    return sorted(states, key=lambda state: int(STATE_NAME.match(state.name)[1]))


def latest_resume_point(folder: str | Path | None) -> Path | None:
    """The newest state in `folder`; None without any."""
    states = all_resume_points(folder)
    return states[-1] if states else None


def latest_undamaged_resume_point(folders: Iterable[str | Path | None], log: Callable[[str], None]) -> Path | None:
    """The newest undamaged state of the first folder that has one; `log` is called for each damaged one skipped."""
    for folder in folders:
        for state in reversed(all_resume_points(folder)):
            if not (problems := resume_point_damage(state)):
                return state
            log(f"{state.parent.name}/{state.name} is damaged ({problems}), so it is passed over for an older one.")
    return None


def resume_point_damage(state: Path) -> str:
    """What is damaged, or "". States of earlier versions have no checksums: their headers must be right."""
    if problems := find_changed_files(state):
        return "; ".join(f"{name} {why}" for name, why in problems.items())
    try:
        read_facts(state)
        for name in () if (state / CHECKSUM_FILE).exists() else (DRAFT, OPTIMIZER):
            tensors_of(state / name)
    except (SpeculoosError, OSError) as error:
        return str(error).rstrip(".")
    return ""


def remove_damaged(folder: Path) -> None:
    """Remove the damaged states of `folder`, so that they do not count towards `keep_last`."""
    for state in all_resume_points(folder):
        if resume_point_damage(state):
            shutil.rmtree(state, ignore_errors=True)


def save_resume_point(
    out_dir: Path, draft: dict[str, Any], moments: dict[str, Any], facts: dict[str, Any], keep: int
) -> Path:
    """Write state-<facts["step"]> and remove all but the newest `keep`. Raises Unavailable when the disk is full."""
    from safetensors.torch import save_file

    final = out_dir / f"state-{facts['step']}"
    out_dir.mkdir(parents=True, exist_ok=True)
    needed = 1.1 * sum(t.numel() * t.element_size() for t in [*draft.values(), *moments.values()])
    if (free := shutil.disk_usage(out_dir).free) < needed:
        raise Unavailable(
            f"The disk of {out_dir} has {free / 1e6:,.1f} MB free, this checkpoint needs {needed / 1e6:,.1f} MB.",
            "Free some space, then retry: training resumes from the last saved state. A lower keep_last needs less.",
        )
    with new_folder(final, replace=True) as building:
        for tensors, name in ((draft, DRAFT), (moments, OPTIMIZER)):
            save_file({k: v.detach().cpu().contiguous() for k, v in tensors.items()}, building / name)
        (building / STATE).write_text(json.dumps(facts, indent=2), encoding="utf-8")
        (building / CHECKSUM_FILE).write_text(checksums_text(list(building.iterdir())), encoding="utf-8")
    for old in all_resume_points(out_dir)[:-keep]:
        shutil.rmtree(old, ignore_errors=True)
    return final


def remove_scratch(folder: Path) -> None:
    """Remove leftovers of a killed run in `folder`: cached features, partially written states."""
    for pattern in (".features-*", ".state-*"):
        for path in folder.glob(pattern):
            shutil.rmtree(path, ignore_errors=True)


def read_facts(state: Path) -> dict[str, Any]:
    """The state's state.json. Raises Damaged when it cannot be read."""
    try:
        facts = json.loads((state / STATE).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise Damaged(f"{state} cannot be resumed from ({error}); start the training anew.") from None
    if not isinstance(facts, dict):
        raise Damaged(f"{state / STATE} holds no object; start the training anew.")
    return facts


def load_resume_point(state: Path, draft: Any, optimizer: Any) -> None:
    """Load the stored tensors into `draft` (a module) and `optimizer` in place, sharded if these are."""
    from safetensors.torch import load_file

    from training.sharding import shard_like

    own = stored_tensors(draft)
    tensors = {name: shard_like(value, own.get(name, value)) for name, value in load_file(state / DRAFT).items()}
    if draft.load_state_dict(tensors, strict=False).unexpected_keys:
        raise BadInput(f"{state} belongs to a draft of another shape; start the training anew.")
    parameters = _parameters(optimizer)
    for key, value in load_file(state / OPTIMIZER).items():
        number, name = key.split(".", 1)
        parameter = parameters[int(number)]
        optimizer.state[parameter][name] = value if name == "step" else shard_like(value, parameter)


def check_resumable(facts: dict[str, Any], now: dict[str, Any], state: Path) -> None:
    """Verify that a state was made with the same `config` and `made_of` (base, data), except CHANGEABLE settings; the
    number of processes may change if `accumulate` compensates. Raises BadInput that names the difference."""
    before, config = facts["config"], now["config"]
    old_processes, processes = facts.get("processes", now["processes"]), now["processes"]
    if before["accumulate"] * old_processes != config["accumulate"] * processes:
        raise BadInput(
            f"accumulate: {state} was made with {before['accumulate']} batches in each of {old_processes} processes, "
            f"not {config['accumulate']} in each of {processes}; their product must stay the same."
        )
    before, expected = {**before, **facts.get("made_of", {})}, {**config, **now["made_of"]}
    for name, value in expected.items():
        old = before.get(name, value)
        same = old == value
        if name == "draft_path":  # its other parts change when a home is moved
            same = Path(old).parts[-3:] == Path(value).parts[-3:]
        if name not in CHANGEABLE and not same:
            raise BadInput(f"{name}: {state} was made with {old!r}, not {value!r}; start a new training for that.")


def optimizer_tensors(optimizer: Any) -> dict[str, Any]:
    """The optimizer's moments as {"<parameter number>.<name>": tensor}, sharded if the parameters are."""
    import torch

    return {
        f"{number}.{name}": value if torch.is_tensor(value) else torch.tensor(float("nan") if value is None else value)
        for number, parameter in enumerate(_parameters(optimizer))
        for name, value in optimizer.state.get(parameter, {}).items()
    }


def _parameters(optimizer: Any) -> list[Any]:
    return [p for group in optimizer.param_groups for p in group["params"]]
