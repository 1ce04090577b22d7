"""The token whose embedding stands for tokens not drafted yet, in drafts that fill masked positions."""

from typing import Any


def mask_token(base: Any) -> int:
    """The token for unknown positions: the tokenizer's mask token, else the first id after all tokens, as in Qwen 3,
    else the last special token that neither ends a turn nor is in the chat template, else padding or the end of a turn.
    """
    tokenizer = base.tokenizer
    if (known := getattr(tokenizer, "mask_token_id", None)) is not None:
        return known
    after_all = max(tokenizer.get_vocab().values()) + 1  # not len(tokenizer), since ids can have gaps
    if after_all < base.vocab_size:
        return after_all
    template = str(getattr(tokenizer, "chat_template", None) or "")
    special = {token.content: number for number, token in tokenizer.added_tokens_decoder.items() if token.special}
    unused = [n for text, n in special.items() if n not in base.eos_ids and text not in template]
    if unused:
        return max(unused)
    pad = tokenizer.pad_token_id
    return min(base.eos_ids, default=0) if pad is None else pad
