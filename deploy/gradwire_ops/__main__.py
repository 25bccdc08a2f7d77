"""`python -m gradwire_ops`: the same as the `gradwire` command."""

from __future__ import annotations

from gradwire_ops.cli import main

main()
