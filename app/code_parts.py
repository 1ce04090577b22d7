"""Code of answers in parts, each with what it is (a keyword, a comment, …), so that it can be seen in colours.

The parts together are the code, whatever its lexer makes of it. A language that is not known stays in one part, and so
does what lies beyond a length or a time: lexers take quadratic time of some texts.
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
"""Characters of a block that get colours, and time of a processor that it may take."""
NAMES = """
    bash c c# c++ cpp cs csharp css dart diff docker dockerfile go golang haskell html ini java javascript js json jsx
    julia kotlin lua make makefile matlab perl php powershell py python python3 r rb rs ruby rust scala scss sh shell
    sql swift toml ts tsx typescript xml yaml yml zsh
"""
LANGUAGES = frozenset(NAMES.split())
"""What may stand after a fence: of the hundreds that Pygments knows, those whose lexers we try on hostile text."""
KINDS = {
    "keyword": (Keyword, Comment.Preproc, Generic.Heading),
    "string": (String, Comment.PreprocFile),
    "comment": (Comment,),
    "number": (Number,),
    "name": (Name.Attribute, Name.Builtin, Name.Class, Name.Decorator, Name.Function, Name.Tag, Name.Variable),
    "removed": (Generic.Deleted,),
    "added": (Generic.Inserted,),
}
"""What is shown in a colour of its own (`data-kind` in static/chat.css)."""


def parts(code: str, language: str) -> list[str | dict[str, Any]]:
    """Texts and `{"tag": "span", "kind", "children": [text]}`, which together are `code`."""
    if language.lower() not in LANGUAGES:
        return [code]
    lexer = find_lexer_class_by_name(language.lower())(ensurenl=False, stripnl=False)
    runs = groupby(_lexed(code, lexer), key=itemgetter(0))
    return [_part(kind, "".join(text for _, text in run)) for kind, run in runs]


def _lexed(code: str, lexer: Lexer) -> Iterator[tuple[str, str]]:
    """(what it is, text) of one token after the other."""
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
    return next((word for word, found in KINDS.items() if any(kind in each for each in found)), "")


def _part(kind: str, text: str) -> str | dict[str, Any]:
    return {"tag": "span", "kind": kind, "children": [text]} if kind else text
