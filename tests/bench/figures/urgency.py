"""Steps of a loop whose forward pass waits for each layer's gradient, and of DDP, which waits
for all of them: with all gradients alike, and with those of the first layers urgent.

One rank a node, in a laboratory of 1 Gbit/s links. Prints a row for each loop as JSON.
"""

from __future__ import annotations

import argparse
import json
import sys

from figures.pace import LAYERS, SHAPE
from figures.training import RATE
from gradwire_ops.children import ChildError, exit_on_terminate
from gradwire_ops.cluster import cluster
from gradwire_ops.job import Job, running
from gradwire_ops.lab import lab
from gradwire_ops.lab_plan import LabError, LabPlan


def main() -> int:
    """Build the nodes, train, print. 1 where it failed."""
    parser = argparse.ArgumentParser(prog="figures.urgency", description=__doc__)
    parser.add_argument("--nodes", type=int, default=2)
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
    job = Job("figures.urgency_rank", (json.dumps(order),), (1,) * arguments.nodes)
    try:
        with (
            exit_on_terminate(),
            lab(LabPlan(arguments.nodes, (RATE,) * arguments.nodes)) as net,
            cluster(arguments.nodes, places=net.places) as daemons,
            running(job, daemons.daemons, daemons.addresses, net.places) as lines,
        ):
            rows = [json.loads(line) for _, line in lines]
    except (ChildError, LabError) as error:
        print(f"the training failed: {error}", file=sys.stderr)
        return 1
    print(json.dumps([{"nodes": arguments.nodes, **row} for row in rows]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
