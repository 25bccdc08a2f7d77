"""Training steps of a paced model, one rank a node, in a laboratory of 1 Gbit/s links.

Prints one row as JSON: the fields of a training_rank.Step, and `nodes`.
"""

from __future__ import annotations

import argparse
import json
import sys

from figures.pace import LAYERS, SHAPE
from gradwire_ops.children import ChildError, exit_on_terminate
from gradwire_ops.cluster import cluster
from gradwire_ops.job import Job, running
from gradwire_ops.lab import lab
from gradwire_ops.lab_plan import LabError, LabPlan

RATE = 10**9


def main() -> int:
    """Build the nodes, train, print. 1 where it failed."""
    return run("figures.training", __doc__)


def run(module: str, description: str | None) -> int:
    """Train as the flags say; the ranks run the module of this name with `_rank` behind it."""
    parser = argparse.ArgumentParser(prog=module, description=description)
    parser.add_argument("--nodes", type=int, default=1)
    parser.add_argument("--layer-ms", type=float, default=20)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    order = {
        "layers": 4 if arguments.quick else LAYERS,
        "shape": SHAPE,
        "layer_seconds": arguments.layer_ms / 1e3,
        "rounds": arguments.rounds,
    }
    job = Job(f"{module}_rank", (json.dumps(order),), (1,) * arguments.nodes)
    try:
        with exit_on_terminate():
            rows = _train(arguments.nodes, job)
    except (ChildError, LabError) as error:
        print(f"the training failed: {error}", file=sys.stderr)
        return 1
    print(json.dumps([{"nodes": arguments.nodes, **row} for row in rows]))
    return 0


def _train(nodes: int, job: Job) -> list[dict[str, object]]:
    with (
        lab(LabPlan(nodes, (RATE,) * nodes)) as net,
        cluster(nodes, places=net.places) as daemons,
        running(job, daemons.daemons, daemons.addresses, net.places) as lines,
    ):
        return [json.loads(line) for _, line in lines]


if __name__ == "__main__":
    sys.exit(main())
