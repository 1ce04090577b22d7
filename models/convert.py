"""Convert GGUF files to Hugging Face folders: de-quantised, saved as safetensors. No torch at import."""

import contextlib
import io
from pathlib import Path
from typing import Any

from speculoos.errors import BadInput, Unsupported

FLOAT32_UP_TO = 2_000_000_000


def convert_gguf(file: str | Path, folder: str | Path) -> dict[str, str]:
    """De-quantise `file` into `folder` (which must exist): weights, config, generation config, tokenizer. Weights are
    float32, or bfloat16 above two billion parameters. Returns the file's `general.*` metadata (name, license, …).
    Raises BadInput for a damaged file, Unsupported for an architecture without a loader."""
    import gguf
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    file = Path(file).resolve()
    try:
        reader = gguf.GGUFReader(str(file))
    except (ValueError, OSError, IndexError, KeyError) as error:
        raise BadInput(f"{file}: damaged GGUF file ({error}); fetch it again.") from None
    parameters = sum(int(tensor.n_elements) for tensor in reader.tensors)
    dtype = torch.float32 if parameters <= FLOAT32_UP_TO else torch.bfloat16
    source = {"pretrained_model_name_or_path": str(file.parent), "gguf_file": file.name, "local_files_only": True}
    try:
        with contextlib.redirect_stderr(io.StringIO()):  # hides progress bars that no option turns off
            model = AutoModelForCausalLM.from_pretrained(dtype=dtype, **source)
            tokenizer = AutoTokenizer.from_pretrained(**source)
    except (ValueError, KeyError, NotImplementedError, OSError, RuntimeError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise Unsupported(f"{file.name}: this GGUF file cannot be converted ({reason}).") from None
    _save(model, tokenizer, Path(folder))
    return {
        name.removeprefix("general."): str(field.contents())
        for name, field in reader.fields.items()
        if name.startswith("general.") and field.types == [gguf.GGUFValueType.STRING]
    }


def _save(model: Any, tokenizer: Any, folder: Path) -> None:
    """save_pretrained rejects a model with a quantisation config, so its tensors move to a new model without one."""
    import torch

    plain = model.config.to_dict()
    plain.pop("quantization_config", None)
    plain.pop("_name_or_path", None)
    plain["architectures"] = [type(model).__name__]
    with torch.device("meta"):
        bare = type(model)(type(model.config).from_dict(plain))
    bare.load_state_dict(model.state_dict(), assign=True)
    bare.tie_weights()
    bare.generation_config = model.generation_config
    with contextlib.redirect_stderr(io.StringIO()):
        bare.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
