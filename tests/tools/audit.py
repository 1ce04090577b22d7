"""Known vulnerabilities and licenses of the installed packages: `python -m tests.tools.audit PIP_AUDIT` (`make audit`).

pip-audit runs from a separate environment, so that it does not change this one. It also succeeds if the service knows
none of the packages (a mirror without advisories), so this module counts what was actually looked up.
"""

import json
import subprocess
import sys
import sysconfig
from collections import Counter
from dataclasses import dataclass, field
from importlib import metadata
from typing import Any

OWN = "speculoos"
UNREACHED = (
    "make audit: the advisory service (pypi.org) cannot be reached from here, so nothing was looked up; it needs the "
    "internet, or a proxy named in HTTPS_PROXY."
)
SECONDS = 900


@dataclass
class Audit:
    """The result of pip-audit: packages that were looked up or skipped, and known vulnerabilities (`faults`)."""

    looked_up: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)


def read(report: dict[str, Any]) -> Audit:
    """Parse pip-audit's JSON report."""
    result = Audit()
    for package in report["dependencies"]:
        name = package["name"]
        if name == OWN:
            continue
        (result.skipped if "skip_reason" in package else result.looked_up).append(name)
        for fault in package.get("vulns", []):
            fixed = ", ".join(fault.get("fix_versions", [])) or "none yet"
            ids = ", ".join([fault["id"], *fault.get("aliases", [])])
            result.faults.append(f"{name} {package['version']}: {ids} (fixed in: {fixed})")
    return result


def verdict(result: Audit | None) -> tuple[int, list[str]]:
    """(exit status, lines to print); status 0: no known vulnerability, 1: some, 2: nothing could be looked up."""
    if result is None or not result.looked_up:
        return 2, [UNREACHED]
    lines = [f"{len(result.looked_up)} packages were looked up."]
    if result.skipped:
        lines.append(f"Not known to the service, so not looked up: {', '.join(result.skipped)}.")
    if not result.faults:
        return 0, [*lines, "No known vulnerability."]
    return 1, [*lines, "Known vulnerabilities:", *(f"  {fault}" for fault in result.faults)]


def ask(pip_audit: str) -> Audit | None:
    """Run pip-audit on the environment of this Python; None if there is no result."""
    options = ["--format", "json", "--progress-spinner", "off", "--skip-editable", "--timeout", "20"]
    command = [pip_audit, *options, "--path", sysconfig.get_paths()["purelib"]]
    try:
        process = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
        return read(json.loads(process.stdout))
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return None


def licenses() -> Counter[str]:
    """Number of installed packages by the license in their metadata."""
    return Counter(_license(package.metadata) for package in metadata.distributions() if package.metadata["Name"])


def _license(fields: Any) -> str:
    if expression := fields.get("License-Expression"):
        return expression
    classes = [c.rpartition(" :: ")[2] for c in fields.get_all("Classifier", []) if c.startswith("License ::")]
    return ", ".join(classes) or (fields.get("License") or "not said").strip().splitlines()[0][:60]


def main(pip_audit: str) -> int:
    """Print all results; returns a non-zero exit status if any check failed."""
    pip_check = subprocess.run([sys.executable, "-m", "pip", "check"], capture_output=True, text=True)
    print(pip_check.stdout.strip() or pip_check.stderr.strip())
    print("\nLicenses:")
    for name, count in sorted(licenses().items(), key=lambda item: -item[1]):
        print(f"  {count:4}  {name}")
    status, lines = verdict(ask(pip_audit))
    print("\n" + "\n".join(lines))
    return status or min(pip_check.returncode, 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
