"""What `fastpaged serve` writes on stderr: one line a record, with the time."""

from __future__ import annotations

import logging
import sys

_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def set_up_logging(level: int = logging.INFO) -> None:
    """Of this process: our own from `level` on, what others have to say from warnings on."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter(_FORMAT))
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(logging.WARNING)
    logging.getLogger("fastpaged").setLevel(level)
