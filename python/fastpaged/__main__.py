"""`python -m fastpaged` is the `fastpaged` command."""

from __future__ import annotations

import sys

from fastpaged.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
