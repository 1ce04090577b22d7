"""Resume points: a folder `state-<step>` with the draft's and the optimizer's tensors, `state.json` and checksums.

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

DRAFT, OPTIMIZER, TRAINER_STATE = "draft.safetensors", "optimizer.safetensors", "state.json"
RESUME_POINT_NAME = re.compile(r"state-(\d+)$")
CHANGEABLE = {"epochs", "max_steps", "max_minutes", "patience", "log_every", "eval_every", "save_every", "keep_last"}
CHANGEABLE |= {"samples", "device", "cache_features_mb", "cache_disk_gb", "save_dtype", "accumulate"}
CHANGEABLE |= {"hidden_states", "hidden_states_ahead", "hidden_states_store"}
"""Settings that a resumed run may change."""


def all_resume_points(folder: str | Path | None) -> list[Path]:
    """Complete resume points in `folder`, oldest first; `folder` may be a resume point itself."""
    if folder is None:
        return []
    folder = Path(folder)
    paths = [folder] if RESUME_POINT_NAME.match(folder.name) else folder.glob("state-*")
    complete = [path for path in paths if RESUME_POINT_NAME.match(path.name) and (path / TRAINER_STATE).exists()]
    return sorted(complete, key=lambda path: int(RESUME_POINT_NAME.match(path.name)[1]))


def latest_resume_point(folder: str | Path | None) -> Path | None:
    """The newest resume point in `folder`; None without any."""
    paths = all_resume_points(folder)
    return paths[-1] if paths else None


def latest_undamaged_resume_point(folders: Iterable[str | Path | None], log: Callable[[str], None]) -> Path | None:
    """The newest undamaged resume point of the first folder that has one; `log` gets a message for each damaged one,
    and one if all are."""
    paths = [path for folder in folders for path in reversed(all_resume_points(folder))]
    for path in paths:
        if not (problems := resume_point_damage(path)):
            return path
        log(f"{path.parent.name}/{path.name} is damaged ({problems}), so it is skipped.")
    if paths:
        log("No intact training state is left, so the training starts from the beginning.")
    return None


def resume_point_damage(path: Path) -> str:
    """What is damaged, or "". Those of earlier versions have no checksums: their headers must be right."""
    if problems := find_changed_files(path):
        return "; ".join(f"{name} {why}" for name, why in problems.items())
    try:
        read_trainer_state(path)
        for name in () if (path / CHECKSUM_FILE).exists() else (DRAFT, OPTIMIZER):
            tensors_of(path / name)
    except (SpeculoosError, OSError) as error:
        return str(error).rstrip(".")
    return ""


def remove_damaged(folder: Path) -> None:
    """Remove the damaged resume points of `folder`, so that they do not count towards `keep_last`."""
    for path in all_resume_points(folder):
        if resume_point_damage(path):
            shutil.rmtree(path, ignore_errors=True)


def save_resume_point(
    out_dir: Path, draft: dict[str, Any], optimizer_state: dict[str, Any], trainer_state: dict[str, Any], keep_last: int
) -> Path:
    """Write state-<step> and remove all but the newest `keep_last`. Raises Unavailable when the disk is full."""
    from safetensors.torch import save_file

    target = out_dir / f"state-{trainer_state['step']}"
    out_dir.mkdir(parents=True, exist_ok=True)
    needed = 1.1 * sum(t.numel() * t.element_size() for t in [*draft.values(), *optimizer_state.values()])
    if (free := shutil.disk_usage(out_dir).free) < needed:
        raise Unavailable(
            f"The disk of {out_dir} has {free / 1e6:,.1f} MB free, this checkpoint needs {needed / 1e6:,.1f} MB.",
            "Free some space, then retry: training resumes from the last saved state. A lower keep_last needs less.",
        )
    with new_folder(target, replace=True) as temporary:
        for tensors, name in ((draft, DRAFT), (optimizer_state, OPTIMIZER)):
            save_file({k: v.detach().cpu().contiguous() for k, v in tensors.items()}, temporary / name)
        (temporary / TRAINER_STATE).write_text(json.dumps(trainer_state, indent=2), encoding="utf-8")
        (temporary / CHECKSUM_FILE).write_text(checksums_text(list(temporary.iterdir())), encoding="utf-8")
    for oldest in all_resume_points(out_dir)[:-keep_last]:
        shutil.rmtree(oldest, ignore_errors=True)
    return target


def remove_scratch(folder: Path) -> None:
    """Remove leftovers of a killed run in `folder`: cached features, partially written resume points."""
    for pattern in (".features-*", ".state-*"):
        for path in folder.glob(pattern):
            shutil.rmtree(path, ignore_errors=True)


def read_trainer_state(path: Path) -> dict[str, Any]:
    """The content of its state.json. Raises Damaged when it cannot be read."""
    try:
        trainer_state = json.loads((path / TRAINER_STATE).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise Damaged(f"{path} cannot be resumed from ({error}); start the training anew.") from None
    if not isinstance(trainer_state, dict):
        raise Damaged(f"{path / TRAINER_STATE} is not a JSON object; start the training anew.")
    return trainer_state


def load_resume_point(path: Path, draft: Any, optimizer: Any) -> None:
    """Load the stored tensors into `draft` (a module) and `optimizer` in place, sharded if these are."""
    from safetensors.torch import load_file

    from training.sharding import shard_like

    current = stored_tensors(draft)
    tensors = {name: shard_like(value, current.get(name, value)) for name, value in load_file(path / DRAFT).items()}
    if draft.load_state_dict(tensors, strict=False).unexpected_keys:
        raise BadInput(f"{path} belongs to a draft of another shape; start the training anew.")
    parameters = _parameters(optimizer)
    for key, value in load_file(path / OPTIMIZER).items():
        number, name = key.split(".", 1)
        parameter = parameters[int(number)]
        optimizer.state[parameter][name] = value if name == "step" else shard_like(value, parameter)


def check_resumable(trainer_state: dict[str, Any], this_run: dict[str, Any], path: Path) -> None:
    """Verify that a resume point has the `config` and `made_of` (base, data) of `this_run`, except CHANGEABLE settings;
    the number of processes may change if `accumulate` compensates. Raises BadInput that names the difference."""
    old, config = trainer_state["config"], this_run["config"]
    old_processes, processes = trainer_state.get("processes", this_run["processes"]), this_run["processes"]
    if old["accumulate"] * old_processes != config["accumulate"] * processes:
        raise BadInput(
            f"accumulate: {path} was made with {old['accumulate']} batches in each of {old_processes} processes, "
            f"not {config['accumulate']} in each of {processes}; their product must stay the same."
        )
    old, expected = {**old, **trainer_state.get("made_of", {})}, {**config, **this_run["made_of"]}
    for name, value in expected.items():
        old_value = old.get(name, value)
        same = old_value == value
        if name == "draft_path":  # its other parts change when a home is moved
            same = Path(old_value).parts[-3:] == Path(value).parts[-3:]
        if name not in CHANGEABLE and not same:
            raise BadInput(f"{name}: {path} was made with {old_value!r}, not {value!r}; start a new training for that.")


def optimizer_tensors(optimizer: Any) -> dict[str, Any]:
    """Its state, such as AdamW's moments, as {"<parameter number>.<name>": tensor}; sharded if the parameters are."""
    import torch

    return {
        f"{number}.{name}": value if torch.is_tensor(value) else torch.tensor(float("nan") if value is None else value)
        for number, parameter in enumerate(_parameters(optimizer))
        for name, value in optimizer.state.get(parameter, {}).items()
    }


def _parameters(optimizer: Any) -> list[Any]:
    return [p for group in optimizer.param_groups for p in group["params"]]
