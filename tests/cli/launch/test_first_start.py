"""The secrets that a container deployment creates once."""

from pathlib import Path

import pytest

from cli.launch.first_start import main, make_secrets


def test_secrets_are_made_once_for_their_owner_and_not_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "secrets"
    assert main([str(folder)]) == 0
    values = {path.name: path.read_text().strip() for path in folder.iterdir()}
    assert set(values) == {"password", "inference-token", "db-password", "database-url"}
    assert all(len(value) >= 24 for value in values.values()) and len(set(values.values())) == 4
    assert values["db-password"] in values["database-url"]
    assert all(path.stat().st_mode & 0o077 == 0 for path in folder.iterdir())
    output = "".join(capsys.readouterr())
    assert not any(value in output for value in values.values())
    assert make_secrets(folder) == []
    assert values == {path.name: path.read_text().strip() for path in folder.iterdir()}
