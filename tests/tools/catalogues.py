"""Updates the catalogues of `app/locale`. `python -m tests.tools.catalogues` adds new messages and removes unused ones.

`--fill LOCALE JSON` adds translations (English → text, or a list of plural forms); `--unmarked FILE…` prints strings
that look like texts of a page but are not marked with `t`, `plural` or `N_`.
"""

import argparse
import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path

from babel.messages import Catalog
from babel.messages.extract import extract
from babel.messages.pofile import read_po, write_po

from app import i18n
from app.changes import LISTINGS
from evaluation.breakdown import CLASSES
from formats import FORMATS
from models.methods import METHODS, SETTINGS, trees
from models.methods.recipes import list_recipes
from speculoos import servers
from tracking.retention_rules import RETENTION
from tracking.states import JobState
from workers.jobs.builtin import BUILT_IN
from workers.jobs.estimates import DEFAULTS, UNKNOWN, UNMEASURED
from workers.jobs.guided import BUDGETS
from workers.jobs.requests import KINDS, Evaluate, GenerateData, Matrix, PlanRequest, Quantize, Serve, Train

CLONE = Path(__file__).resolve().parents[2]
KEYWORDS = {"t": None, "plural": (1, 2), "N_": None}
LOCALES = [tag.replace("-", "_") for tag in i18n.LANGUAGES if tag != "en"]
SENTENCE = re.compile(r"[A-Za-z]{2,}[,;:]? [A-Za-z(“]{2,}|^[A-Z][a-z]{2,}")
"""What looks like a text: two words, or one that starts with a capital letter."""
CODE = re.compile(r"^[<.#]|=>|</|[{}]|var\(|^[A-Z][A-Za-z]+[A-Z]|^[a-z-]+ [a-z-]+-[a-z-]+$|\bsp-|^--|^SELECT ")
STRING = r'"(?:[^"\\]|\\.)*"|`(?:[^`\\]|\\.)*`'
SCRIPT_TEXT = re.compile(rf"\b(?:t|Error)\((?:{STRING})|({STRING})")
"""A string of a script; the group is empty if it is the text of `t` or of an error."""
NOT_SHOWN = {"elem_id", "elem_classes", "class_", "js", "href", "d", "style", "media_type", "variant", "kind", "fmt"}
"""Keyword arguments whose strings are not shown."""
INTERNAL = re.compile(
    r"Error$|^(BadInput|NotFound|Conflict|getLogger|log_rarely|compile|warn|Field|debug|info|warning)$"
)
"""Calls whose strings are not translated: errors are in English."""
SAME = re.compile(
    r"(Speculoos|Hugging Face|EAGLE|Medusa|Spec-Bench|English|Deutsch|vLLM [\d.]+.*|owner/name.*|False"
    r"|[A-Z][a-z]+-[A-Z][a-z]+|Escape|Enter|Tab|Shift|Control|Alt|Meta|Delete|Backspace|Unidentified)"
)
"""Names that are the same in all languages, headers of HTTP, names of keys."""
INTERNAL_TEXTS = {
    *("private, no-cache", 'attachment; filename="', ": logged out", ": still here"),
    *("(prefers-color-scheme: dark)", "(prefers-reduced-motion: reduce)", "figcaption button", "a, button, summary"),
    *("noopener noreferrer nofollow", "position: fixed; opacity: 0"),
    *("Drafting", "prompt lookup", "Temperatures", "Trees", "Log in first."),
    *("Paused:", "disk is full", "answers, counters", "Speculation is off", "Click to upload or drop files", "All"),
    *("This", "does not exist: it was deleted, or the URL is wrong.", "matches the filter and the search."),
    "Test message of Speculoos: finished jobs will be reported here.",
    "Write a Python function that checks whether a number is even.",
    *("What are five tips for sleeping better?", "What is photosynthesis?"),
}
"""HTTP; CSS and HTML; parts of errors; texts that are compared; parts of texts in `record_texts`; a webhook's message
and prompts, in the language of the starter."""
WITHOUT_TEXTS = {"gradio_gate.py", "inference.py", "metrics.py", "refused_values.py", "theme.py", "turns.py"}
"""Files of `app/` whose strings are errors, headers, or metrics."""


def record_texts() -> set[str]:
    """Texts of records of other packages that the pages show through `t`."""
    return set().union(
        _training_texts(), _setting_texts(), _list_texts(), _job_texts(), _result_texts(), {trees.NOT_SAVED}
    )


def _training_texts() -> set[str]:
    methods = {text for record in METHODS.values() for text in (record.title, record.about)}
    numbered = {f"{name} {{n}}" for name in ("head", "depth", "step", "position")}  # app/views/metrics_view.py
    servers = {record.servers(name) for record in FORMATS.values() for name in METHODS if record.layout(name)}
    return methods | {recipe.about for recipe in list_recipes()} | numbered | servers


def _setting_texts() -> set[str]:
    shown = {
        Train: ("processes", "sharding"),
        Evaluate: ("endpoint_model", "plain_model", "plain_endpoint", "concurrency", "limit", "max_tokens"),
        Matrix: ("limit", "max_tokens"),
        PlanRequest: ("batches", "layers"),
        Quantize: ("scheme",),
        Serve: tuple(name for name in Serve.options() if name != "engine"),
        GenerateData: tuple(name for name in GenerateData.options() if name != "endpoint"),
    }
    settings = [*SETTINGS.values(), *(kind.options()[name] for kind, names in shown.items() for name in names)]
    return {text for setting in settings for text in (setting.label, setting.help)}


def _list_texts() -> set[str]:
    """Texts about a row, which name its kind (app/widgets/list_page.py, list_query.py)."""
    texts = ("This {} does not exist: it was deleted, or the URL is wrong.", "← All {}s", "No {} yet")
    texts += ("No {} matches the filter and the search.",)
    return {text.format(listing.noun) for listing in LISTINGS for text in texts}


def _job_texts() -> set[str]:
    units = {"steps", "rows", "responses", "questions", "cells", "measurements", "prompts", "layers", "recordings"}
    states = {state.lower() for state in JobState}
    return {kind.title for kind in KINDS} | units | states | {UNMEASURED, UNKNOWN, DEFAULTS} | set(BUDGETS)


def _result_texts() -> set[str]:
    sets = {text for suite in BUILT_IN.values() for text in (suite.title, suite.lead)}
    return sets | {
        *CLASSES,
        *RETENTION.values(),
        servers.SHARED,
        servers.FROM_ENVIRONMENT,
        "its own",
        "this engine",
        "job",
        "experiment",
        "evaluation",
    }


def messages() -> Catalog:
    """All messages of the sources."""
    catalog = Catalog()
    for path in sorted([*(CLONE / "app").rglob("*.py"), *(CLONE / "app" / "static").glob("*.js")]):
        name = str(path.relative_to(CLONE))
        with path.open("rb") as file:
            for _, message, _, _ in extract("python" if path.suffix == ".py" else "javascript", file, KEYWORDS):
                catalog.add(message, locations=[(name, 0)])
    for text in record_texts():
        catalog.add(text, locations=[("records", 0)])
    return catalog


def catalogue(locale: str) -> Catalog:
    """The stored catalogue; an empty one if there is none."""
    path = i18n.CATALOGUES / f"{locale}.po"
    if not path.exists():
        return Catalog(locale=locale)
    with path.open(encoding="utf-8") as file:
        return read_po(file, locale=locale)


def update(locale: str, translations: dict[str, str | list[str]]) -> None:
    """Write the catalogue with the messages of the sources; `translations` are added to those it has."""
    old, new = catalogue(locale), Catalog(locale=locale)
    for message in messages():
        if not message.id:
            continue
        key = message.id if isinstance(message.id, str) else message.id[0]
        stored = old.get(key)
        text = translations.get(key) or (stored.string if stored else "")
        if isinstance(message.id, tuple):
            text = tuple(text) if text else ("",) * new.num_plurals
        new.add(message.id, text, message.locations)
    with (i18n.CATALOGUES / f"{locale}.po").open("wb") as file:
        write_po(file, new, width=120, sort_output=True, omit_header=True, include_lineno=False)


def unmarked(path: Path) -> Iterator[tuple[int, str]]:
    """(line, text) of the strings of a source that look like texts but are not marked."""
    if path.name in WITHOUT_TEXTS:
        return
    source = path.read_text(encoding="utf-8")
    strings = _python_strings(ast.parse(source)) if path.suffix == ".py" else _script_strings(source)
    yield from ((line, text) for line, text in strings if is_text(text))


def is_text(text: str) -> bool:
    return (
        not (SAME.fullmatch(text.strip()) or text.strip() in INTERNAL_TEXTS)
        and bool(SENTENCE.search(text))
        and not CODE.search(text)
    )


def _python_strings(node: ast.AST) -> Iterator[tuple[int, str]]:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.lineno, node.value
    for child in ast.iter_child_nodes(node):
        if not _is_internal(child):
            yield from _python_strings(child)


def _is_internal(node: ast.AST) -> bool:
    """Whether strings inside `node` are marked, or not shown."""
    if isinstance(node, ast.Call):
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        return name in KEYWORDS or bool(INTERNAL.search(name))
    is_docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    return is_docstring or isinstance(node, ast.Raise) or isinstance(node, ast.keyword) and node.arg in NOT_SHOWN


def _script_strings(source: str) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(source.splitlines(), 1):
        for match in SCRIPT_TEXT.finditer("" if line.lstrip().startswith("//") else line):
            if match[1]:
                yield number, re.sub(r"\$\{[^}]*\}", "%", match[1][1:-1])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--unmarked", nargs="+", type=Path)
    parser.add_argument("--fill", nargs=2, metavar=("LOCALE", "JSON"))
    options = parser.parse_args()
    for path in options.unmarked or ():
        for line, text in unmarked(path):
            print(f"{path}:{line}: {text[:100]!r}")
    if not options.unmarked:
        locale, file = options.fill or ("", "")
        for name in LOCALES:
            update(name, json.loads(Path(file).read_text(encoding="utf-8")) if name == locale else {})


if __name__ == "__main__":
    main()
