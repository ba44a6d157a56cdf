"""Check the installed packages for known vulnerabilities with pip-audit; part of ``make lint``.

Without pip-audit or a network connection it prints a message and passes. Vulnerabilities are printed. They are a
failure only with ``--strict``, because a new report must not block everybody's work.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

_SECONDS = 60


def main(arguments: Sequence[str]) -> int:
    """Return the exit code."""
    report = ask()
    if isinstance(report, str):
        print(f"pip-audit: skipped, {report}")
        return 0
    found = vulnerabilities(report)
    for line in found:
        print(f"pip-audit: {line}")
    if not found:
        print(f"pip-audit: {len(report.get('dependencies', []))} packages, no known vulnerability")
    return int(bool(found) and "--strict" in arguments)


def ask() -> dict[str, Any] | str:
    """Return pip-audit's report, or why there is none."""
    if find_spec("pip_audit") is None:
        return "it is not installed"
    command = [sys.executable, "-m", "pip_audit", "--format=json", "--progress-spinner=off", "--timeout=5"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_SECONDS)
    except subprocess.TimeoutExpired:
        return f"no answer within {_SECONDS} seconds"
    try:
        report: dict[str, Any] = json.loads(found.stdout)
    except ValueError:
        return f"nothing could be asked: {(found.stderr.strip() or 'no message').splitlines()[-1][:200]}"
    return report


def vulnerabilities(report: dict[str, Any]) -> list[str]:
    """Return one line for each vulnerability of a report."""
    return [
        f"{package['name']} {package.get('version', '')}: {known['id']}, fixed in "
        f"{', '.join(known.get('fix_versions') or ['no version'])}"
        for package in report.get("dependencies", [])
        for known in package.get("vulns", [])
    ]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
