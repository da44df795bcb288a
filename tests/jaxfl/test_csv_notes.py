"""What a table's note says of its columns."""

import numpy as np
import pytest

from jaxfl.datasets import load


def note_of(folder, header, rows, **told):
    path = folder / "people.csv"
    path.write_text("\n".join([header, *rows]) + "\n")
    return load(path, target="ill", **told).note


def people(count=60):
    rng = np.random.default_rng(0)
    ill = np.where(rng.random(count) < 0.5, "yes", "no")
    return rng.normal(size=count).round(3), ill


def test_a_column_that_is_the_target_again_is_said(tmp_path):
    ages, ill = people()
    again = np.where(ill == "yes", "1", "0")
    almost = again.copy()
    almost[0] = "0" if almost[0] == "1" else "1"
    rows = [f"{a},{b},{c},{d}" for a, b, c, d in zip(ages, again, almost, ill, strict=True)]
    note = note_of(tmp_path, "age,again,almost,ill", rows)
    assert "'again' names 'ill' of every row: is it the same column twice?" in note
    assert "almost" not in note
    assert "age'" not in note


def test_columns_of_one_name_are_said(tmp_path):
    ages, ill = people()
    rows = [f"{a},{-a},{d}" for a, d in zip(ages, ill, strict=True)]
    assert "two columns may be called 'age' in the file; here the second is 'age.1'" in note_of(
        tmp_path, "age,age,ill", rows
    )
    assert note_of(tmp_path, "age,weight,ill", rows) == ""


def test_columns_that_number_the_rows_and_two_spellings_are_said(tmp_path):
    ages, ill = people()
    cities = ["Bonn", "bonn", "Kiel"] * 20
    rows = [
        f"{k},{a},{c},{d}" for k, (a, c, d) in enumerate(zip(ages, cities, ill, strict=True), 1)
    ]
    note = note_of(tmp_path, "row,age,city,ill", rows)
    assert "'row' numbers the rows: leave it out (drop)" in note
    assert "'city' holds 'Bonn' and 'bonn', which count as different values" in note
    note = note_of(tmp_path, "row,age,city,ill", [rows[1], rows[0], *rows[2:]])
    assert "numbers the rows" not in note


def test_separators_of_thousands_are_named(tmp_path):
    _, ill = people()
    rows = [f'"{k},916.27",{d}' for k, d in enumerate(ill)]
    for decimal in ".", ",":
        with pytest.raises(ValueError, match="take separators of thousands out of the file"):
            note_of(tmp_path, "cost,ill", rows, decimal=decimal)
