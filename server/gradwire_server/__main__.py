"""`python -m gradwire_server`: a daemon from GRADWIRE_* alone. People use `gradwire serve`."""

from __future__ import annotations

import sys

from gradwire_server.daemon import run
from gradwire_server.errors import SettingsError
from gradwire_server.settings import load


def main() -> int:
    """Exit code: see daemon.run; 2 where the environment is wrong."""
    try:
        return run(load({}))
    except SettingsError as error:
        sys.stderr.write(f"gradwire: {error}\n")
        return 2


if __name__ == "__main__":
    sys.exit(main())
