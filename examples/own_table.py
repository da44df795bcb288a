"""A page for people who never heard of any of this: what updates give away of a table of one's own.

The same as on the command line: `python -m benchmarks.audit --csv people.csv ...`.
"""

# %%
import csv
import tempfile
from pathlib import Path

import numpy as np

from benchmarks import audit

folder = Path(tempfile.mkdtemp())
rng = np.random.default_rng(0)
numbers, smoker = rng.normal(size=(600, 4)).round(3), rng.integers(0, 2, 600)
sick = numbers @ [1, -1, 0.5, 0] + 1.5 * smoker + rng.normal(size=600) > 0.8
with (folder / "people.csv").open("w", newline="") as file:
    table = csv.writer(file)
    table.writerow(["age", "weight", "pressure", "visits", "smoker", "sick"])
    for row, smokes, is_sick in zip(numbers, smoker, sick, strict=True):
        table.writerow([*row, ("no", "yes")[smokes], ("no", "yes")[int(is_sick)]])

# %% Three sentences are printed, and a page with the whole is written.
words = ["--csv", str(folder / "people.csv"), "--target", "sick", "--sensitive", "smoker"]
words += ["--clients", "3", "--records", "60", "--batch-size", "0", "--hidden", "32"]
words += ["--rounds", "10", "--epsilon", "none,3", "--seeds", "2"]
words += ["--questions", "attribute,epsilon", "--out", str(folder / "audit")]
status = audit.main(words)
assert status == 0, "the audit failed: see its page"
