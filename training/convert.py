"""Training as a library, for a loaded transformers model with a custom training loop or Hugging Face's Trainer.

`convert` returns a module whose forward takes a batch of `collate_rows` and returns {"loss"}; its parameters are the
draft's. `load` restores a saved one. Unlike our own loop, such loops divide each batch's loss by that batch's count.
"""

import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel

from decoding.generate import GenerateConfig
from models import identity
from models.base import LoadedBase, load_base, pick_device, training_dtype
from models.chat import render
from models.checkpoints import base_notices, read_config, save_draft_in_place, stored_tensors
from models.damage import UNSAVED, weights_sum
from models.methods import SETTINGS, train_config
from models.methods.settings import TrainConfig, max_length_error
from models.starter import installed
from speculoos.errors import BadInput, NotFound, SpeculoosError
from speculoos.files import new_folder
from training.batches import Batch, DataStats, TokenizedConversation, collate, make_conversation
from training.masks import mask_conversation
from training.method import make_method, with_draws
from training.samples import ModelAnswer, copy_as_loaded, draft_answer
from training.token_files import row_info

BASE = "base"  # folder of a copied base model, inside the draft's folder
METHOD_PREFIX = "method."  # prefix of names in this module's state dict; a checkpoint has the draft's names
DRAFT_PREFIX = f"{METHOD_PREFIX}draft."


def conversations_from(
    rows: Iterable[Mapping[str, Any]], base: LoadedBase, max_length: int | None = None
) -> list[TokenizedConversation]:
    """Rows with `messages` (or `token_ids` and `loss_spans`) as masked conversations, truncated to `max_length` tokens
    (default: 2048, or the base's maximum if smaller). Raises BadInput for a bad row, or a length above the maximum."""
    if max_length is not None and max_length > base.max_length:
        raise max_length_error(base.max_length, max_length)
    limit = max_length or min(SETTINGS["max_length"].default, base.max_length)
    stats = DataStats()
    conversations = []
    for row in rows:
        masked = mask_conversation(row, base.tokenizer, base.eos_ids)
        ids, mask = torch.tensor(masked.token_ids, dtype=torch.int32), torch.tensor(masked.mask)
        conversations.append(make_conversation(ids, mask, row_info(row, masked), limit, stats))
    return [conversation for conversation in conversations if conversation]


def collate_rows(rows: Sequence[TokenizedConversation]) -> dict[str, Tensor]:
    """A data collator: padded `input_ids`, `mask` [B, L] and `lengths` [B]."""
    batch = collate(rows)
    return {"input_ids": batch.input_ids, "mask": batch.mask, "lengths": batch.lengths}


def convert(
    base: LoadedBase, method: str, conversations: Sequence[TokenizedConversation] = (), **settings: Any
) -> "TrainableDraft":
    """A new, trainable draft for `base`; a draft vocabulary is counted over `conversations`."""
    return TrainableDraft(base, train_config(method, **settings), conversations)


def load(
    folder: str | Path,
    base: LoadedBase | None = None,
    conversations: Sequence[TokenizedConversation] = (),
    device: str = "auto",
) -> "TrainableDraft":
    """Restore a draft written by `TrainableDraft.save` or `Trainer.save_model`, or any other checkpoint. `base`
    replaces the base that the folder holds or names; EAGLE-3 scales its features to `conversations`. Raises NotFound
    without the base, Damaged when a file does not match its checksum."""
    folder, config = Path(folder), read_config(folder)
    stored = config.get("training", {}).get("settings")
    settings = {**stored, "device": device} if isinstance(stored, Mapping) else {"device": device}
    settings = {name: value for name, value in settings.items() if name not in ("method", "draft_path")}
    options = train_config(config["speculoos_method"], **settings)
    draft = TrainableDraft(base or _load_recorded_base(folder, config, options), options, conversations, folder)
    draft.notices = base_notices(config, draft.base_sha256())
    return draft


class TrainableDraft(PreTrainedModel):
    """Draft and loss in one module. A PreTrainedModel, so that Trainer saves it by `save_pretrained`."""

    config_class = PreTrainedConfig

    def __init__(
        self,
        base: LoadedBase,
        config: TrainConfig,
        conversations: Sequence[TokenizedConversation] = (),
        folder: str | Path = "",
    ):
        super().__init__(PreTrainedConfig())
        torch.manual_seed(config.seed)
        self.settings, self.base = config, base  # a LoadedBase, so its parameters are not registered
        config = config.model_copy(update={"draft_path": str(folder)}) if folder else config
        self.method = make_method(config, base, conversations)
        self.notices: list[str] = []
        self._drafting = {key: read_config(folder).get(key) for key in ("drafting", "tuning")} if folder else {}

    @classmethod
    def from_pretrained(cls, folder: str | Path, **options: Any) -> "TrainableDraft":  # type: ignore[override]
        """Same as `load`."""
        return load(folder, **options)

    @property
    def draft(self) -> nn.Module:
        return self.method.draft

    def forward(self, input_ids: Tensor, mask: Tensor, lengths: Tensor) -> dict[str, Tensor]:
        """{"loss"}: Σ_k weight_k · sum_k / count_k over this batch."""
        if input_ids.device != self.base.device:
            raise BadInput(
                f"The batch is on {input_ids.device} and the frozen base on {self.base.device}; "
                "load the base on the device that trains (for Trainer: TrainingArguments.device)."
            )
        seed = int(torch.randint(2**31, ()))  # a resumed Trainer restores the generator's state
        features = with_draws(self.method, self.method.features(Batch(input_ids, mask, lengths)), seed)
        weights = torch.tensor(self.method.weights, device=input_ids.device)
        scale = weights / self.method.counts(features).clamp(min=1)
        return {"loss": self.method(features, seed, scale).loss}

    def generate(self, prompt: str | Sequence[dict[str, str]], max_tokens: int = 128, **options: Any) -> ModelAnswer:
        """Answer a prompt or messages with the current draft; `options` of `GenerateConfig`, greedy by default."""
        messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
        draft = copy_as_loaded(self.base, self.draft)
        draft.drafting = self._drafting.get("drafting") or {}
        prompt_ids = render(self.base.tokenizer, messages)
        config = GenerateConfig(max_tokens, **options)
        return draft_answer(self.base, draft, prompt_ids, config, self.base.max_length)

    def save(self, folder: str | Path, copy_base: bool = False, **info: Any) -> Path:
        """Write a checkpoint for `load(folder)`, which names the base's folder or holds a copy (`copy_base`)."""
        folder = Path(folder)
        within = Path(self.base.path).resolve().is_relative_to(folder.resolve())  # which is replaced
        with new_folder(folder, replace=True) as building:
            if copy_base or within:
                _copy_base(self.base, building / BASE)
                info["base_path"] = BASE
            save_draft_in_place(building, self.draft, self._info(info), self.settings.save_dtype)
        if within:
            self.base.path = folder / BASE
        return folder

    def save_pretrained(  # type: ignore[override]
        self,
        save_directory: str | Path,
        is_main_process: bool = True,
        state_dict: Mapping[str, Tensor] | None = None,
        **_: Any,
    ) -> None:
        """Called by Trainer: write the files of `save` in training precision; other files in the folder remain."""
        if is_main_process:
            Path(save_directory).mkdir(parents=True, exist_ok=True)
            stored = stored_tensors(self.draft)
            names = {name: name.removeprefix(DRAFT_PREFIX) for name in state_dict or ()}
            names |= {name: short.removeprefix("model.") for name, short in names.items() if short not in stored}
            tensors = {short: state_dict[name] for name, short in names.items() if short in stored} or None
            save_draft_in_place(save_directory, self.draft, self._info({}), tensors=tensors)

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """Load a state dict of this module, or of a checkpoint."""
        if all(name.startswith(METHOD_PREFIX) for name in state_dict):
            return super().load_state_dict(state_dict, strict, assign)
        expected = stored_tensors(self.draft)
        missing, unexpected = [n for n in expected if n not in state_dict], [n for n in state_dict if n not in expected]
        if strict and (wrong := [*missing, *unexpected]):
            raise BadInput(f"The state dict does not belong to this draft (first wrong tensor: {wrong[0]}).")
        self.draft.load_state_dict(state_dict, strict=False)
        return SimpleNamespace(missing_keys=missing, unexpected_keys=unexpected)

    def base_sha256(self) -> str:
        """sha256 of the base's weights; "" when they are not safetensors files in a folder."""
        try:
            return weights_sum(Path(self.base.path), UNSAVED)
        except (SpeculoosError, OSError):
            return ""

    def _info(self, info: dict[str, Any]) -> dict[str, Any]:
        path = Path(self.base.path)
        recorded = {"settings": self.settings.to_json(), "base_sha256": self.base_sha256(), **self._drafting}
        field = {"base_path": str(path.resolve())} if path.is_dir() else {}
        return {"base": path.name if path.is_dir() else str(path), **field, **recorded, **info}


def _copy_base(base: LoadedBase, folder: Path) -> None:
    source = Path(base.path)
    if not source.is_dir():
        base.model.save_pretrained(folder)
        base.tokenizer.save_pretrained(folder)
        return
    folder.mkdir()
    index = [source / identity.INDEX] if (source / identity.INDEX).exists() else []
    for file in (*identity.read_files(source), *identity.weight_files(source), *index):
        shutil.copyfile(file, folder / file.name)


def _load_recorded_base(folder: Path, config: dict[str, Any], settings: TrainConfig) -> LoadedBase:
    path = config.get("base_path", "")
    base_folder = folder / path if path else installed(config.get("base_sha256", ""))
    if base_folder is None or not base_folder.is_dir():
        name = path or config.get("base") or "unknown"
        raise NotFound(f"{folder}: its base {name} is not here; load it and pass it as base=load_base(FOLDER).")
    device = pick_device(settings.device)
    return load_base(base_folder, training_dtype(settings.base_dtype, device), str(device))
