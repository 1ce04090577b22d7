"""`make audit` reports what was looked up; an audit that looked nothing up is no success."""

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
    status, lines = audit.verdict(audit.read({"dependencies": [FINE, SKIPPED]}))
    assert status == 0 and lines[-1] == "No known vulnerability." and "torch" in lines[1]


def test_a_known_fault_is_named_with_its_cure() -> None:
    status, lines = audit.verdict(audit.read({"dependencies": [FINE, FAULTY]}))
    assert status == 1 and lines[-1] == "  pillow 1.0: PYSEC-1, CVE-2026-1 (fixed in: 1.1)"


def test_a_mirror_without_advisories_is_no_success() -> None:
    """pip-audit itself prints `No known vulnerabilities found` here and exits with 0."""
    status, lines = audit.verdict(audit.read({"dependencies": [SKIPPED, {**SKIPPED, "name": "httpx"}]}))
    assert status == 2 and "cannot be reached" in lines[0]


@pytest.mark.integration
@pytest.mark.parametrize("script", ["exit 1", "echo no JSON", "echo '{}' >&2; exit 3"])
def test_a_pip_audit_that_fails_gives_no_report(script: str, tmp_path: Path) -> None:
    broken = tmp_path / "pip-audit"
    broken.write_text(f"#!/bin/sh\n{script}\n")
    broken.chmod(0o755)
    assert audit.ask(str(broken)) is None


@pytest.mark.integration
def test_an_audit_without_a_report_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert audit.main(str(tmp_path / "none")) == 2
    assert audit.UNREACHED in capsys.readouterr().out
