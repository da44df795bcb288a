"""Runs the code of README.md and of other pages, and compares what it prints with what its comments
say: `python -m tests.readme`, or as a file, with whatever jaxfl is installed: `make wheel`."""

import contextlib
import io
import re
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = "README.md", "docs/records.md", "docs/recordings.md", "docs/scale.md"
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
PRINTED = re.compile(r"^print\(.*\)  # (\d+(?:\.\d+)?)\b", re.MULTILINE)


def main() -> int:
    """The number of figures that are not as their page says."""
    return sum(wrong_on(page) for page in PAGES)


def wrong_on(page: str) -> int:
    """Of one page."""
    code = "\n".join(BLOCK.findall((ROOT / page).read_text()))
    said = PRINTED.findall(code)
    began = time.perf_counter()
    output = io.StringIO()
    with contextlib.chdir(ROOT), contextlib.redirect_stdout(output):
        exec(compile(code, page, "exec"), {"__name__": "page"})
    printed = output.getvalue().split()
    wrong = 0
    for expected, value in zip(said, printed, strict=True):
        places = len(expected.partition(".")[2])
        agrees = round(float(value), places) == float(expected)
        wrong += not agrees
        print(f"{page} says {expected}, its code prints {value}{'' if agrees else '  <- differs'}")
    print(f"{len(said)} figures in {time.perf_counter() - began:.0f} s")
    return wrong


if __name__ == "__main__":
    sys.exit(main())
