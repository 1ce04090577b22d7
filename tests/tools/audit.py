"""Known vulnerabilities and licenses of what is installed: `python -m tests.tools.audit PIP_AUDIT` (`make audit`).

pip-audit is run from an environment of its own, so that it changes nothing of ours. It ends well also when the service
knew none of the packages (a mirror without advisories), so what was really looked up is counted here.
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
    """What pip-audit found: packages that were looked up, those that it could not, and their known faults."""

    looked_up: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)


def read(report: dict[str, Any]) -> Audit:
    """pip-audit's JSON."""
    found = Audit()
    for package in report["dependencies"]:
        name = package["name"]
        if name == OWN:
            continue
        (found.skipped if "skip_reason" in package else found.looked_up).append(name)
        for fault in package.get("vulns", []):
            fixed = ", ".join(fault.get("fix_versions", [])) or "none yet"
            known = ", ".join([fault["id"], *fault.get("aliases", [])])
            found.faults.append(f"{name} {package['version']}: {known} (fixed in: {fixed})")
    return found


def verdict(found: Audit | None) -> tuple[int, list[str]]:
    """The exit status, and what to say: 0 for no known fault, 1 for some, 2 where nothing could be looked up."""
    if found is None or not found.looked_up:
        return 2, [UNREACHED]
    said = [f"{len(found.looked_up)} packages were looked up."]
    if found.skipped:
        said.append(f"Not known to the service, so not looked up: {', '.join(found.skipped)}.")
    if not found.faults:
        return 0, [*said, "No known vulnerability."]
    return 1, [*said, "Known vulnerabilities:", *(f"  {fault}" for fault in found.faults)]


def ask(pip_audit: str) -> Audit | None:
    """Run pip-audit on the environment of this Python; None when it brought no result."""
    options = ["--format", "json", "--progress-spinner", "off", "--skip-editable", "--timeout", "20"]
    command = [pip_audit, *options, "--path", sysconfig.get_paths()["purelib"]]
    try:
        made = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
        return read(json.loads(made.stdout))
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return None


def licenses() -> Counter[str]:
    """How many of the installed packages have which license, as they say themselves."""
    return Counter(_license(found.metadata) for found in metadata.distributions() if found.metadata["Name"])


def _license(words: Any) -> str:
    if short := words.get("License-Expression"):
        return short
    classes = [c.rpartition(" :: ")[2] for c in words.get_all("Classifier", []) if c.startswith("License ::")]
    return ", ".join(classes) or (words.get("License") or "not said").strip().splitlines()[0][:60]


def main(pip_audit: str) -> int:
    """Say everything; the exit status is the worst of the parts."""
    consistent = subprocess.run([sys.executable, "-m", "pip", "check"], capture_output=True, text=True)
    print(consistent.stdout.strip() or consistent.stderr.strip())
    print("\nLicenses:")
    for name, count in sorted(licenses().items(), key=lambda item: -item[1]):
        print(f"  {count:4}  {name}")
    status, said = verdict(ask(pip_audit))
    print("\n" + "\n".join(said))
    return status or min(consistent.returncode, 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
