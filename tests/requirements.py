"""Prints requirements of pyproject.toml, one a line, so that they can be installed without building the project.

python tests/requirements.py build dependencies test
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

# A list of strings under one of these keys; the file is ours, and Python 3.10 has no TOML reader.
KEYS = {"build": "requires", "dependencies": "dependencies", "test": "test", "bench": "bench", "lint": "lint"}


def requirements(pyproject: str, name: str) -> list[str]:
    """The strings of one list."""
    found = re.search(rf"^{KEYS[name]} = \[(.*?)\]$", pyproject, re.MULTILINE | re.DOTALL)
    if found is None:
        raise SystemExit(f"pyproject.toml has no list called {KEYS[name]!r}")
    return re.findall(r'"([^"]+)"', found.group(1))


if __name__ == "__main__":
    text = (Path(__file__).resolve().parents[1] / "pyproject.toml").read_text(encoding="utf-8")
    for key in sys.argv[1:]:
        print("\n".join(requirements(text, key)))
