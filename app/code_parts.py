"""Splits code in responses into parts with a kind (keyword, comment, …) for syntax highlighting.

The parts joined are always the original code. Code of an unknown language, and the rest beyond a length or time limit,
stay one part: lexers take quadratic time for some texts.
"""

from collections.abc import Iterator
from itertools import groupby
from operator import itemgetter
from time import thread_time
from typing import Any

from pygments.lexer import Lexer
from pygments.lexers import find_lexer_class_by_name
from pygments.token import Comment, Generic, Keyword, Name, Number, String

LONGEST, SECONDS = 20_000, 0.25
"""Limits of a highlighted block: characters, and seconds of CPU time."""
NAMES = """
    bash c c# c++ cpp cs csharp css dart diff docker dockerfile go golang haskell html ini java javascript js json jsx
    julia kotlin lua make makefile matlab perl php powershell py python python3 r rb rs ruby rust scala scss sh shell
    sql swift toml ts tsx typescript xml yaml yml zsh
"""
LANGUAGES = frozenset(NAMES.split())
"""Supported languages of code blocks: those Pygments lexers that are tested with hostile text."""
KINDS = {
    "keyword": (Keyword, Comment.Preproc, Generic.Heading),
    "string": (String, Comment.PreprocFile),
    "comment": (Comment,),
    "number": (Number,),
    "name": (Name.Attribute, Name.Builtin, Name.Class, Name.Decorator, Name.Function, Name.Tag, Name.Variable),
    "removed": (Generic.Deleted,),
    "added": (Generic.Inserted,),
}
"""Kind (`data-kind` in static/chat.css) → token types."""


def parts(code: str, language: str) -> list[str | dict[str, Any]]:
    """Texts and `{"tag": "span", "kind", "children": [text]}`; joined they are `code`."""
    if language.lower() not in LANGUAGES:
        return [code]
    lexer = find_lexer_class_by_name(language.lower())(ensurenl=False, stripnl=False)
    runs = groupby(_lexed(code, lexer), key=itemgetter(0))
    return [_part(kind, "".join(text for _, text in run)) for kind, run in runs]


def _lexed(code: str, lexer: Lexer) -> Iterator[tuple[str, str]]:
    """(kind, text) of each token."""
    done, until = 0, thread_time() + SECONDS
    for _, kind, text in lexer.get_tokens_unprocessed(code):
        if done > LONGEST or thread_time() > until or not code.startswith(text, done):
            break
        done += len(text)
        if text:
            yield _kind(kind), text
    if done < len(code):
        yield "", code[done:]


def _kind(kind: Any) -> str:
    return next((name for name, types in KINDS.items() if any(kind in token_type for token_type in types)), "")


def _part(kind: str, text: str) -> str | dict[str, Any]:
    return {"tag": "span", "kind": kind, "children": [text]} if kind else text
