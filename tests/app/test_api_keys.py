"""The Settings page's keys: shown once, listed by their beginnings, revoked; names of people are never HTML."""

from pathlib import Path

import pytest

from app.views import settings_forms as api_keys
from speculoos.settings import Settings
from tracking import keys
from tracking.db import reading


def live(home: Settings) -> list[str]:
    with reading(home) as rows:
        return [key.name for key in keys.list_keys(rows)]


def test_a_key_is_made_shown_once_and_revoked(home: Settings) -> None:
    assert "inference-token" in api_keys.keys_view(home)[0]
    said, secret, name, listed, choices = api_keys.make_key(home, "laptop")
    assert "cannot be shown again" in said and secret.visible and name == ""
    assert secret.value.startswith("sk-speculoos-") and secret.value not in said + listed
    assert "laptop" in listed and secret.value[:16] in listed and "never" in listed
    ((label, key_id),) = choices.choices
    assert label.startswith("laptop") and secret.value not in label
    assert secret.value not in str(api_keys.keys_view(home)[0])

    said, hidden, listed, choices = api_keys.revoke_key(home, key_id)
    assert "Revoked “laptop”" in said and not hidden.visible and hidden.value == ""
    assert live(home) == [] and choices.choices == []


@pytest.mark.parametrize(("name", "words"), [("", "empty"), ("a@b", "@"), (None, "empty"), ("x" * 200, "120")])
def test_a_name_that_will_not_do_is_said(home: Settings, name: str | None, words: str) -> None:
    said, secret, kept, *_ = api_keys.make_key(home, name)
    assert words in said and not secret.visible and kept == name and live(home) == []


def test_names_are_shown_as_text(home: Settings) -> None:
    said, _, _, listed, _ = api_keys.make_key(home, "<img src=x onerror=alert(1)>")
    assert "<img" not in said + listed and "&lt;img" in listed


@pytest.mark.parametrize(("chosen", "words"), [(None, "Choose the key"), ("nothing", "no live key")])
def test_nothing_to_revoke_is_said(home: Settings, chosen: str | None, words: str) -> None:
    api_keys.make_key(home, "kept")
    assert words in api_keys.revoke_key(home, chosen)[0] and live(home) == ["kept"]


def test_a_database_that_is_away_is_said(tmp_path: Path) -> None:
    from speculoos.settings import load

    away = load({"SPECULOOS_HOME": str(tmp_path / "nowhere")})
    assert "sp-bad" in api_keys.keys_view(away)[0] and "sp-bad" in api_keys.make_key(away, "x")[0]
