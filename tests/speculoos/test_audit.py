"""`make audit` says what was looked up: an audit of nothing is no good news."""

from pathlib import Path

import pytest

from tests.tools import audit

SKIPPED = {"name": "torch", "skip_reason": "Dependency not found on PyPI and could not be audited: torch (2.13.0+cpu)"}
FINE = {"name": "httpx", "version": "0.28.1", "vulns": []}
FAULTY = {
    "name": "pillow",
    "version": "1.0",
    "vulns": [{"id": "PYSEC-1", "aliases": ["CVE-2026-1"], "fix_versions": ["1.1"], "description": "…"}],
}


def test_no_known_fault() -> None:
    status, said = audit.verdict(audit.read({"dependencies": [FINE, SKIPPED]}))
    assert status == 0 and said[-1] == "No known vulnerability." and "torch" in said[1]


def test_a_known_fault_is_named_with_its_cure() -> None:
    status, said = audit.verdict(audit.read({"dependencies": [FINE, FAULTY]}))
    assert status == 1 and said[-1] == "  pillow 1.0: PYSEC-1, CVE-2026-1 (fixed in: 1.1)"


def test_a_mirror_without_advisories_is_no_good_news() -> None:
    """pip-audit itself says `No known vulnerabilities found` here, and ends with 0."""
    status, said = audit.verdict(audit.read({"dependencies": [SKIPPED, {**SKIPPED, "name": "httpx"}]}))
    assert status == 2 and "cannot be reached" in said[0]


@pytest.mark.integration
@pytest.mark.parametrize("script", ["exit 1", "echo no JSON", "echo '{}' >&2; exit 3"])
def test_a_pip_audit_that_breaks_off_brings_nothing(script: str, tmp_path: Path) -> None:
    broken = tmp_path / "pip-audit"
    broken.write_text(f"#!/bin/sh\n{script}\n")
    broken.chmod(0o755)
    assert audit.ask(str(broken)) is None


@pytest.mark.integration
def test_an_audit_that_brings_nothing_is_said_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert audit.main(str(tmp_path / "none")) == 2
    assert audit.UNREACHED in capsys.readouterr().out
