"""Classify the tokens of an answer: code, number, name, word, punctuation, other script. Plain Python.

The class depends on the token's text and the text before it: everything inside a ``` fence is code; a capital letter
within a sentence starts a name, which continues over the following tokens without a space.
"""

import unicodedata
from collections.abc import Iterable, Iterator
from functools import lru_cache

CODE, NUMBERS, NAMES, WORDS = "code", "numbers", "names", "words"
PUNCTUATION, SPACES, OTHER = "punctuation and signs", "spaces and line breaks", "other scripts"
CLASSES = (CODE, NUMBERS, NAMES, WORDS, PUNCTUATION, OTHER, SPACES)
FENCE, INCOMPLETE = "```", "\ufffd"
ENDS_SENTENCE = frozenset('.!?:;\n*#-"“(')


def classify_tokens(pieces: Iterable[str]) -> Iterator[str]:
    """The class of each token text of one answer, in order."""
    text, previous = "", ""
    for piece in pieces:
        previous = CODE if _in_code(text, piece) else _class(piece, text, previous)
        text += piece
        yield previous


def _in_code(text: str, piece: str) -> bool:
    """Whether the token is inside a fence, or part of one."""
    return text.count(FENCE) % 2 == 1 or (text[-2:] + piece).count(FENCE) > text[-2:].count(FENCE)


def _class(piece: str, text: str, previous: str) -> str:
    core = piece.strip()
    if not core:
        return SPACES
    if INCOMPLETE in core or any(letter.isalpha() and not _is_latin(letter) for letter in core):
        return OTHER
    if any(letter.isalpha() for letter in core):
        return _word(piece, core, text, previous)
    return NUMBERS if any(sign.isdigit() for sign in core) else PUNCTUATION


def _word(piece: str, core: str, text: str, previous: str) -> str:
    continues = piece[0] == core[0] and text[-1:].isalpha()
    if continues and previous in (NAMES, WORDS):
        return previous
    begins = not text.rstrip(" ") or text.rstrip(" ")[-1] in ENDS_SENTENCE
    return NAMES if core[0].isupper() and not begins and core != "I" else WORDS


@lru_cache(maxsize=4096)
def _is_latin(letter: str) -> bool:
    return letter.isascii() or unicodedata.name(letter, "").startswith("LATIN")
