"""Rebuild gradwire_proto/v1 from gradwire/v1: `make proto`.

The .proto files import one another by their public path, gradwire/v1, as anybody who generates
stubs from them expects. protoc derives Python modules from that path, and `gradwire.v1` would
lie inside the client's package; so the generated imports are moved to gradwire_proto.v1.
"""

from __future__ import annotations

import re
import sys
import tempfile
from pathlib import Path

from grpc_tools import protoc

HERE = Path(__file__).parent
TARGET = HERE / "gradwire_proto" / "v1"
WELL_KNOWN = Path(protoc.__file__).parent / "_proto"


def generate(scratch: Path) -> None:
    """Write the generated modules under scratch/gradwire/v1."""
    sources = sorted(str(path.relative_to(HERE)) for path in HERE.glob("gradwire/v1/*.proto"))
    outputs = [
        f"--{kind}_out={scratch}" for kind in ("python", "grpc_python", "pyi", "mypy_grpc")
    ]
    if protoc.main(["protoc", f"-I{HERE}", f"-I{WELL_KNOWN}", *outputs, *sources]) != 0:
        sys.exit("protoc failed; its message stands above")


def install(scratch: Path) -> None:
    """Replace gradwire_proto/v1 by what lies under scratch."""
    for stale in TARGET.glob("*_pb2*"):
        stale.unlink()
    TARGET.mkdir(parents=True, exist_ok=True)
    for module in sorted((scratch / "gradwire" / "v1").iterdir()):
        text = module.read_text()
        for name in ("tensor", "aggregator", "peer"):
            text = text.replace(
                f"from gradwire.v1 import {name}_pb2",
                f"from gradwire_proto.v1 import {name}_pb2",
            )
            text = text.replace(
                f"import gradwire.v1.{name}_pb2", f"import gradwire_proto.v1.{name}_pb2"
            )
            text = text.replace(f"gradwire.v1.{name}_pb2.", f"gradwire_proto.v1.{name}_pb2.")
        # protoc leaves the type of a message given as a dictionary open; type checkers mind.
        text = re.sub(r"\b_Mapping\b(?!\[| as|$)(?=[\],])", "_Mapping[str, object]", text)
        (TARGET / module.name).write_text(text)
    (TARGET / "__init__.py").write_text(
        '"""Generated from proto/gradwire/v1 by `make proto`."""\n'
    )


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        generate(Path(folder))
        install(Path(folder))
