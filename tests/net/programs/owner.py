"""Builds a laboratory with daemons in it, writes down what it is made of, and waits."""

from __future__ import annotations

import json
import os
import time

from gradwire_ops.cluster import cluster
from gradwire_ops.lab import lab
from gradwire_ops.lab_plan import LabPlan

with lab(LabPlan(2, (10**9, 10**9), delay_seconds=0.002)) as net, cluster(2, {}, net.places):
    paths = [node.namespace.path for node in net.nodes]
    found = {"paths": paths, "inodes": [os.stat(path).st_ino for path in paths]}
    # The report on standard output is this program's interface.
    print(json.dumps(found), flush=True)  # noqa: T201
    time.sleep(60)
