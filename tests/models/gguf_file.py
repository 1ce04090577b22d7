"""A small llama GGUF file with the weights of a Hugging Face folder, written with the gguf library."""

import json
from pathlib import Path

import gguf
import numpy as np
from safetensors.numpy import load_file

LAYER = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
TOP = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


def write_gguf(folder: Path, file: Path) -> Path:
    """Write `file` from the tiny llama in `folder`, unquantized."""
    config = json.loads((folder / "config.json").read_text())
    writer = gguf.GGUFWriter(str(file), "llama")
    writer.add_name("Tiny")
    writer.add_license("apache-2.0")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(config["vocab_size"])
    _tokenizer(writer, folder, config)
    for name, value in load_file(folder / "model.safetensors").items():
        writer.add_tensor(_name(name), _permuted(name, value, config))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def _tokenizer(writer: gguf.GGUFWriter, folder: Path, config: dict) -> None:
    model = json.loads((folder / "tokenizer.json").read_text())
    vocab = sorted(model["model"]["vocab"], key=model["model"]["vocab"].__getitem__)
    special = {t["content"] for t in model["added_tokens"]}
    kinds = [gguf.TokenType.CONTROL if token in special else gguf.TokenType.NORMAL for token in vocab]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(vocab)
    writer.add_token_types(kinds)
    writer.add_token_merges([" ".join(pair) for pair in model["model"]["merges"]])
    writer.add_bos_token_id(config["bos_token_id"])
    writer.add_eos_token_id(config["eos_token_id"])
    writer.add_chat_template((folder / "chat_template.jinja").read_text())


def _name(name: str) -> str:
    stem, suffix = name.rsplit(".", 1)
    if stem in TOP:
        return f"{TOP[stem]}.{suffix}"
    _model, _layers, number, part = stem.split(".", 3)
    return f"blk.{number}.{LAYER[part]}.{suffix}"


def _permuted(name: str, value: np.ndarray, config: dict) -> np.ndarray:
    """GGUF keeps the two halves of each rotary head interleaved."""
    heads = {"q_proj": "num_attention_heads", "k_proj": "num_key_value_heads"}.get(name.split(".")[-2])
    if heads is None:
        return value
    rows, columns = value.shape
    return value.reshape(config[heads], 2, rows // config[heads] // 2, columns).swapaxes(1, 2).reshape(rows, columns)
