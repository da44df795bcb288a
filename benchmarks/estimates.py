"""Measured times become estimates: `python -m benchmarks.estimates --out results
[other folders]`."""

import sys

import tyro

from benchmarks.harness import estimates
from benchmarks.harness.store import Store


def main(out: tuple[str, ...] = ("results",)) -> int:
    """Write the table of seconds per job anew from results; tables that they lack stay.

    Args:
        out: folders of results.
    """
    rows = []
    for folder in out:
        try:
            store = Store.existing(folder)
        except ValueError as error:
            print(f"error: {error}", file=sys.stderr)
            return 2
        rows += store.rows()
        store.close()
    lines = estimates.refreshed(rows)
    estimates.write(lines)
    print(f"{len(lines)} lines of {estimates.PATH.name}")
    return 0


if __name__ == "__main__":
    sys.exit(tyro.cli(main, prog="python -m benchmarks.estimates"))
