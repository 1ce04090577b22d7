"""The words page: what τ, tree and acceptance mean, beside a real answer of the starter in which all of it is seen."""

from app.views import words_view
from app.widgets.elements import block, page_header, section
from app.words import WORDS
from speculoos.settings import Settings

LEAD = "What the words of the field mean here, shown on a real answer."


def build(settings: Settings) -> None:
    """Wire the page inside the current Blocks; nothing on it changes."""
    page_header("Words", LEAD)
    section("An answer as the workbench shows it")
    block(words_view.picture(words_view.example()), elem_id="words-picture")
    section("Words")
    block(words_view.meanings(WORDS), elem_id="words-meanings")
