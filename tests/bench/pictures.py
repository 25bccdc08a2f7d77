"""Makes the pictures of the status page that the README shows: `make pictures`.

A real job of two nodes with two ranks each, of which one is slow; Debian's chromium looks at
the first node's page.
"""

from __future__ import annotations

import io
import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from PIL import Image
from playwright.sync_api import sync_playwright

from gradwire_ops import query
from gradwire_ops.cluster import cluster
from gradwire_ops.job import Job, running

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser

HERE = Path(__file__).parent
PICTURES = HERE.parents[1] / "deploy" / "pictures"
JOB = Job("pictures_rank", (), (2, 2), timeout_seconds=300.0)
WARM_STEPS = 40
"""After so many the page's figures are those of a job that has run for a while."""
LOOK_MILLISECONDS = 12_000
LARGEST_BYTES = 200_000
FLAGS = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)


def main() -> int:
    """Exit code: 1 where there is no browser."""
    chromium = shutil.which("chromium")
    if chromium is None:
        print("chromium is not installed: apt-get install chromium fonts-dejavu-core")
        return 1
    paths = [str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    with (
        cluster(2, {"GRADWIRE_METRICS_LISTEN": "127.0.0.1:0"}) as nodes,
        running(JOB, nodes.daemons, nodes.addresses) as lines,
        sync_playwright() as playwright,
    ):
        _await_steps(lines)
        browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        address = query.status(nodes.addresses[0]).metrics
        _take(browser, address, "status-light", "light", (1180, 860), 1.0)
        _take(browser, address, "status-dark-phone", "dark", (390, 1000), 1.5)
        browser.close()
    return 0


def _await_steps(lines: Iterator[tuple[int, str]]) -> None:
    for rank, line in lines:
        if rank == 0 and int(line) >= WARM_STEPS:
            return


def _take(  # noqa: PLR0913 - of what, how, and to where
    browser: Browser,
    address: str,
    name: str,
    scheme: Literal["light", "dark"],
    window: tuple[int, int],
    scale: float,
) -> None:
    page = browser.new_page(
        viewport={"width": window[0], "height": window[1]},
        color_scheme=scheme,
        device_scale_factor=scale,
    )
    page.goto(f"http://{address}/")
    page.wait_for_timeout(LOOK_MILLISECONDS)
    image = Image.open(io.BytesIO(page.screenshot()))
    page.close()
    PICTURES.mkdir(exist_ok=True)
    file = PICTURES / f"{name}.png"
    image.convert("RGB").save(file, optimize=True)
    size = file.stat().st_size
    if size > LARGEST_BYTES:
        raise ValueError(f"{file} has {size} bytes, and {LARGEST_BYTES} are allowed")
    print(f"{file}: {size} bytes")


if __name__ == "__main__":
    sys.exit(main())
