"""A Hugging Face folder with the base model's tokenizer."""

from formats.checkpoint import METADATA_KEYS, CheckpointFiles
from models.identity import EXTRA_TOKENIZER_FILES, TEMPLATES, TOKENIZER_FILES
from tests.formats.table import TensorTable, flat


def huggingface(checkpoint: CheckpointFiles) -> TensorTable:
    """Every stored tensor under transformers' name; the model's config without the workbench's keys."""
    config = {key: value for key, value in checkpoint.config.items() if key not in METADATA_KEYS}
    fields = {key: config[key] for key in ("model_type", "vocab_size", "hidden_size") if key in config}
    free = frozenset(flat(config)) | {"architectures"}
    names = (*TOKENIZER_FILES, *TEMPLATES, *EXTRA_TOKENIZER_FILES, "tokenizer_config.json")
    return TensorTable(
        {name: (entry.shape, entry.dtype) for name, entry in checkpoint.tensors.items()},
        {**fields, "dtype": checkpoint.dtype},
        checkpoint.written_type,
        free,
        files=("generation_config.json", *(name for name in names if (checkpoint.base_path / name).is_file())),
    )
