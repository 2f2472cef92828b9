"""`fastpaged` and `python -m fastpaged` begin here: everything else is imported where Ctrl-C is already caught."""

import os
import sys

EXIT_INTERRUPTED = 130


def main() -> int:
    """Runs the command and returns its exit status; an interrupted one ends the process here."""
    try:
        from fastpaged.cli.main import main as command

        status = command()
        if status != EXIT_INTERRUPTED:
            return status
    except KeyboardInterrupt:
        pass
    # Not by way of sys.exit: Python kills itself with SIGINT at its end if Ctrl-C came while it ran source text (as
    # dataclasses do when they are defined), even if the exception was caught, and a second Ctrl-C would be a traceback.
    os._exit(EXIT_INTERRUPTED)


if __name__ == "__main__":
    sys.exit(main())
