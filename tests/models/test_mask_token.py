"""The token of masked positions is one that texts do not contain, if there is one."""

from types import SimpleNamespace

import pytest

from models.mask_token import mask_token

CHAT = {"<pad>": 0, "<start>": 1, "<end>": 2, "<unused>": 3}


class Tokenizer(SimpleNamespace):
    """Its ids have gaps, so their number is not the first id that is free."""

    def get_vocab(self) -> dict[str, int]:
        return {**CHAT, "word": 299}


def base(vocab_size: int, special: dict[str, int], **tokens: int | None) -> SimpleNamespace:
    added = {number: SimpleNamespace(content=text, special=True) for text, number in special.items()}
    ids = {"mask_token_id": None, "pad_token_id": 0, **tokens}
    tokenizer = Tokenizer(added_tokens_decoder=added, chat_template="<start> … <end>", **ids)
    return SimpleNamespace(tokenizer=tokenizer, vocab_size=vocab_size, eos_ids=frozenset({2}))


@pytest.mark.parametrize(
    ("vocab_size", "special", "tokens", "expected"),
    [
        (320, CHAT, {"mask_token_id": 9}, 9),
        (320, CHAT, {}, 300),  # an embedding after those of all tokens
        (300, CHAT, {}, 3),  # neither in the template nor the end of a turn
        (300, {"<start>": 1, "<end>": 2}, {}, 0),
        (300, {"<start>": 1, "<end>": 2}, {"pad_token_id": None}, 2),
        (300, CHAT, {"mask_token_id": 300}, 3),  # a tokenizer with more ids than embeddings
        (300, {**CHAT, "<beyond>": 301}, {}, 3),
        (300, {"<end>": 2}, {"pad_token_id": 300}, 2),
        (2, {"<end>": 2}, {"pad_token_id": None}, 0),
    ],
)
def test_an_unused_token_comes_first(vocab_size, special, tokens, expected):
    assert mask_token(base(vocab_size, special, **tokens)) == expected
