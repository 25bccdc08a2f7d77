"""Steps of a loop whose forward pass waits for each layer's gradient, and of DDP, which waits
for all of them: with all gradients alike, and with those of the first layers urgent.

One rank a node, in a laboratory of 1 Gbit/s links. Prints a row for each loop as JSON.
"""

from __future__ import annotations

import sys

from figures.training import run

if __name__ == "__main__":
    sys.exit(run("figures.urgency", __doc__))
