"""The token whose embedding stands for tokens not drafted yet, in drafts that fill masked positions."""

from typing import Any


def mask_token(base: Any) -> int:
    """The token for unknown positions: the tokenizer's mask token, else the first id after all tokens, as in Qwen 3,
    else the last special token that neither ends a turn nor is in the chat template, else padding or the end of a turn.
    Tokens without an embedding are left out: a tokenizer may have more ids than the base model.
    """
    tokenizer, embeddings = base.tokenizer, range(base.vocab_size)
    if (known := getattr(tokenizer, "mask_token_id", None)) in embeddings:
        return known
    after_all = max(tokenizer.get_vocab().values()) + 1  # not len(tokenizer), since ids can have gaps
    if after_all in embeddings:
        return after_all
    template = str(getattr(tokenizer, "chat_template", None) or "")
    special = {token.content: number for number, token in tokenizer.added_tokens_decoder.items() if token.special}
    unused = [n for text, n in special.items() if n in embeddings and n not in base.eos_ids and text not in template]
    if unused:
        return max(unused)
    if (pad := tokenizer.pad_token_id) in embeddings:
        return pad
    return min((n for n in base.eos_ids if n in embeddings), default=0)
