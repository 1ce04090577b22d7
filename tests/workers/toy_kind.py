"""A job kind in one file that counts words. `register(CountWords)` registers it."""

from pathlib import Path
from typing import Any, ClassVar, Literal

from sqlalchemy.orm import Session

from models.methods.settings import setting
from speculoos.errors import BadInput
from workers.jobs.request import Need, Rate, Request
from workers.jobs.requests import register


class CountWords(Request):
    """Count the words of a text file."""

    kind: ClassVar[str] = "count_words"
    title: ClassVar[str] = "Count words"
    queue: ClassVar[Literal["gpu", "io"]] = "io"
    work: ClassVar[str] = __name__
    rate: ClassVar[Rate] = Rate(bytes=1e6)

    path: str = setting(..., "The text file.", label="Text file")
    least: int = setting(1, "Letters of a word at the least.", 1, 50, label="Shortest word")
    case: Literal["keep", "lower"] = setting("keep", "Whether upper case counts.", label="Case")
    unique: bool = setting(False, "Count each word once.", label="Each word once")

    def check_options(self) -> None:
        if not Path(self.path).is_file():
            raise BadInput(f"Text file: there is no file {self.path}.")

    def default_name(self, session: Session) -> str:
        return Path(self.path).name

    def need(self, session: Session) -> Need:
        return Need(float(Path(self.path).stat().st_size))


def run(request: CountWords, context: Any) -> dict[str, Any]:
    """The number of words."""
    text = Path(request.path).read_text()
    words = [word for word in text.split() if len(word) >= request.least]
    words = [word.lower() for word in words] if request.case == "lower" else words
    return {"words": len(set(words) if request.unique else words)}


register(CountWords)
