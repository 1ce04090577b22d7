"""API keys on the Settings page: shown once, listed by their prefixes and revoked; names are escaped."""

from pathlib import Path

import pytest

from app.views import settings_forms as api_keys
from speculoos.settings import Settings
from tracking import keys
from tracking.db import reading


def live_keys(home: Settings) -> list[str]:
    with reading(home) as session:
        return [key.name for key in keys.list_keys(session)]


def test_a_key_is_made_shown_once_and_revoked(home: Settings) -> None:
    assert "inference-token" in api_keys.keys_view(home)[0]
    message, secret, name, listed, choices = api_keys.make_key(home, "laptop")
    assert "cannot be shown again" in message and secret.visible and name == ""
    assert secret.value.startswith("sk-speculoos-") and secret.value not in message + listed
    assert "laptop" in listed and secret.value[:16] in listed and "never" in listed
    ((label, key_id),) = choices.choices
    assert label.startswith("laptop") and secret.value not in label
    assert secret.value not in str(api_keys.keys_view(home)[0])

    message, hidden, listed, choices = api_keys.revoke_key(home, key_id)
    assert "Revoked “laptop”" in message and not hidden.visible and hidden.value == ""
    assert live_keys(home) == [] and choices.choices == []


@pytest.mark.parametrize(("name", "expected"), [("", "empty"), ("a@b", "@"), (None, "empty"), ("x" * 200, "120")])
def test_an_invalid_name_is_refused(home: Settings, name: str | None, expected: str) -> None:
    message, secret, kept_name, *_ = api_keys.make_key(home, name)
    assert expected in message and not secret.visible and kept_name == name and live_keys(home) == []


def test_names_are_shown_as_text(home: Settings) -> None:
    message, _, _, listed, _ = api_keys.make_key(home, "<img src=x onerror=alert(1)>")
    assert "<img" not in message + listed and "&lt;img" in listed


@pytest.mark.parametrize(("chosen", "expected"), [(None, "Choose the key"), ("nothing", "no live key")])
def test_revoking_without_a_live_key_is_refused(home: Settings, chosen: str | None, expected: str) -> None:
    api_keys.make_key(home, "kept")
    assert expected in api_keys.revoke_key(home, chosen)[0] and live_keys(home) == ["kept"]


def test_an_unavailable_database_is_reported(tmp_path: Path) -> None:
    from speculoos.settings import load

    settings = load({"SPECULOOS_HOME": str(tmp_path / "nowhere")})
    assert "sp-bad" in api_keys.keys_view(settings)[0] and "sp-bad" in api_keys.make_key(settings, "x")[0]
