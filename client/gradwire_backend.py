"""Tells torch.distributed of the backend "grpc"; torch calls it at the end of its own import.

An error in an entry point of torch.backends makes `import torch` fail, so nothing is raised
here, and nothing of Gradwire is loaded before the first group is made.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch._C._distributed_c10d import _DistributedBackendOptions

    from gradwire._process_group import ProcessGroup

NAME = "grpc"
DEVICES = ["cpu", "cuda"]


def register() -> None:
    """Make "grpc" a backend of torch.distributed. May be repeated; logs what goes wrong."""
    try:
        import torch.distributed as dist

        if dist.is_available() and NAME not in dist.Backend.backend_list:
            dist.Backend.register_backend(NAME, _create, extended_api=True, devices=DEVICES)
    except Exception:
        logging.getLogger("gradwire").exception(
            "torch.distributed can't be told of the backend %r; gradwire.connect works without",
            NAME,
        )


def _create(options: _DistributedBackendOptions, backend_options: object) -> ProcessGroup:
    """A process group; torch calls it with what init_process_group or new_group was given."""
    from gradwire._process_group import create

    return create(options, backend_options)
