"""Writes the dashboards' JSON from the code in boards/: `make dashboards`."""

from __future__ import annotations

from pathlib import Path

from boards import BOARDS, draw

FOLDER = Path(__file__).with_name("dashboards")


def main() -> None:
    """Write all that there are; a file that no board stands for any more goes."""
    texts = {FOLDER / f"{board.uid}.json": draw.text(board) for board in BOARDS}
    for stale in set(FOLDER.glob("*.json")) - set(texts):
        stale.unlink()
    for path, text in texts.items():
        path.write_text(text)


if __name__ == "__main__":
    main()
