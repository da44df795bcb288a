"""Write results.csv and report.html anew: `python -m benchmarks.report [--out results]`."""

import sys

import tyro

from benchmarks.harness import report
from benchmarks.harness.store import Store
from benchmarks.suites import METRICS


def main(out: str = "results") -> int:
    """Write results.csv and report.html anew from the results in a folder.

    Args:
        out: the folder.
    """
    try:
        store = Store.existing(out)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    page = report.write(store.rows(), store.folder, METRICS, store.images())
    print(store.write_csv(), page)
    store.close()
    return 0


if __name__ == "__main__":
    sys.exit(tyro.cli(main, prog="python -m benchmarks.report"))
