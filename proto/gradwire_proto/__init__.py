"""What ranks and daemons must agree on: messages, memory layout, chunking. No I/O."""

from __future__ import annotations

PROTOCOL = 5
"""Version of the contract; a daemon refuses a rank, and a peer, of another one."""
