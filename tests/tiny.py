"""Tiny random base models with a real tokenizer and chat template, for tests and benchmarks."""

from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

CHATML = (
    "{% for message in messages %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
TEXT = ["the quick brown fox jumps over the lazy dog", "a model guesses tokens and a larger one checks them", "1 2 3 +"]
SMALL = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
}

LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
GRANITE = {
    "logits_scaling": 3.0,
    "embedding_multiplier": 2.0,
    "residual_multiplier": 0.5,
    "attention_multiplier": 0.4,
}
MIXED = {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 1}
FAMILIES: dict[str, tuple[str, dict[str, object]]] = {
    "llama": ("llama", {}),
    "llama3": ("llama", {"rope_parameters": LLAMA3_ROPE, "tie_word_embeddings": True}),
    "mistral": ("mistral", {"sliding_window": 16}),
    "phi": ("phi", {}),
    "phi3": ("phi3", {"sliding_window": 16, "pad_token_id": 0}),
    "qwen2": ("qwen2", {}),
    "qwen2-mixed": ("qwen2", MIXED),
    "qwen3": ("qwen3", MIXED | {"head_dim": 16}),
    "generic": ("gpt_neox", {}),
    "granite": ("granite", GRANITE),
    "gemma2": ("gemma2", {"head_dim": 8, "sliding_window": 16, "final_logit_softcapping": 20.0}),
    "cohere": ("cohere", {"logit_scale": 0.3}),
}
"""{name: (transformers model_type, config changes)}. They cover every attention, rotary embedding and projection the
fast forward supports, some that it does not, and all logit rules: plain, bias (Phi), scale (Granite, Cohere) and cap
(Gemma 2)."""


def tiny_tokenizer(vocab_size: int = 320) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer: every text round-trips, and an emoji is several tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXT, trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<|im_start|>", eos_token="<|im_end|>", pad_token="<|im_end|>"
    )
    fast.chat_template = CHATML
    return fast


def make_tiny_base(folder: str | Path, family: str = "llama", seed: int = 0, **overrides: object) -> Path:
    """Write a tiny random `family` model (a transformers model_type) and its tokenizer to `folder`, and return it. The
    weights have a larger variance than transformers' default, so that greedy decoding has no near ties."""
    folder = Path(folder)
    tokenizer = tiny_tokenizer()
    config = AutoConfig.for_model(family, **{**SMALL, "vocab_size": len(tokenizer), **overrides})
    config.bos_token_id, config.eos_token_id = tokenizer.bos_token_id, tokenizer.eos_token_id
    config.pad_token_id = tokenizer.pad_token_id
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() > 1:
                weight.normal_(0, 0.2 if "embed" not in name else 1.0)
        if getattr(head := model.get_output_embeddings(), "bias", None) is not None:
            head.bias.normal_()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
