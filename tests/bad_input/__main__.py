"""Count what bad input comes to: `python -m tests.bad_input [function ...]`."""

import collections
import sys

from benchmarks.laws.bad_input import HARMLESS, NAMED, cases, outcome
from tests.bad_input.examples import GROUPS

counts = collections.Counter()
for group in GROUPS:
    for function, arguments in group().items():
        if sys.argv[1:] and function.__name__ not in sys.argv[1:]:
            continue
        for place, done, spoilt in cases(function, arguments):
            what = outcome(function, place, done, spoilt)
            counts[what.split(":")[0]] += 1
            if what not in (NAMED, HARMLESS):
                print(f"{function.__name__} {place} [{done}] {what}".replace("\n", " "), flush=True)
bad = counts.total() - counts[HARMLESS]
print(f"{counts[NAMED]} of {bad} named, {counts[NAMED] / bad:.1%};", dict(counts))
