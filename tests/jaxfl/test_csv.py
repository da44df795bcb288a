"""A CSV file as a source."""

import bz2
import gzip
import lzma
import zipfile

import numpy as np
import pytest

from jaxfl.datasets import load, read_csv


def test_csv(tmp_path):
    path = tmp_path / "people.csv"
    path.write_text(
        "age,job,smoker,zip,income\n30,clerk,yes,8001,high\n41,?,no,8002,low\n,nurse,no,8003,low\n55,clerk,yes,8001,high\n"
        "20,nurse,no,8004,\n"
    )
    data = load(str(path), target="income", drop=["zip"])
    assert data.y.tolist() == [0, 1, 1, 0]  # the row without a target is gone
    assert data.column("job").categories == ("clerk", "nurse", "(missing)")
    assert data.values_of("job").tolist() == [0, 2, 1, 0]
    assert data.values_of("smoker").tolist() == [1, 0, 0, 1]
    assert data.column("smoker").positions == (4,)
    assert data.x[2, 0] == pytest.approx(0, abs=1e-6)  # a missing number is the mean
    codes = load(
        str(path),
        target="income",
        kinds={"zip": "categorical"},
        categories={"job": ["clerk", "nurse", "pilot"]},
    )
    assert codes.column("zip").categories == ("8001", "8002", "8003")
    assert codes.column("job").categories == ("clerk", "nurse", "pilot", "(missing)")
    assert load(str(path), target="age", task="regression").classes is None
    binned = load(str(path), target="income", sensitive="age", bins=2)
    assert binned.sensitive == "age"
    assert binned.column("age").categories == ("30 to 42.5", "42.5 to 55")


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("a,b\n1,2\n", {"target": "c"}, "target='c' is not a column of .*; columns: a, b"),
        ("a,b\n1,2\n", {"target": "b", "kinds": {"z": "numeric"}}, "kinds='z' is not a column"),
        ("a,b\n1,2\n", {"target": "b", "kinds": {"a": "text"}}, "kinds.'a'.='text' must be one of"),
        ("a,b\n1,2\n3\n", {"target": "b"}, "has 1 cells in row 3; the header has 2"),
        ("a,b\n1,1\n2,2\ninf,3\n", {"target": "b"}, "column 'a' holds inf, beyond float32"),
        (
            "a,b\n1,2\n",
            {"target": "b", "sensitive": "b"},
            "sensitive='b' is the target, the client or dropped",
        ),
        ("a,b\n", {"target": "b"}, "needs a header and at least one row"),
        (
            "a,b\nx,1\ny,2\n",
            {"target": "b", "kinds": {"a": "numeric"}},
            "column 'a' is numeric but 'x' is no number",
        ),
        ("a,b\n1,?\n", {"target": "b"}, "has no row with a value of 'b'"),
        ("b\n1\n2\n", {"target": "b"}, "has no column besides the target"),
        (
            "a,b\n" + "".join(f"t{i},1\n" for i in range(30)),
            {"target": "b"},
            "has 30 distinct texts, more than max_categories=20",
        ),
    ],
)
def test_bad_csv(tmp_path, text, options, message):
    path = tmp_path / "bad.csv"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        read_csv(path, **options)


def test_columns_of_one_name_are_told_apart_and_can_be_dropped(tmp_path):
    path = tmp_path / "twice.csv"
    path.write_text("a,a,a.1,a,b\n" + "".join(f"{i},{2 * i},{3 * i},{i**2},0\n" for i in range(9)))
    table = read_csv(path, "b")
    assert table.names == ("a", "a.2", "a.1", "a.3")
    assert (table.values[:, 1] == 2 * np.arange(9)).all()
    assert read_csv(path, "b", drop=["a.2", "a.3"]).names == ("a", "a.1")


def test_numbers_keep_their_scale_and_two_categories_are_two_dummies_if_that_is_asked(tmp_path):
    path = tmp_path / "own.csv"
    path.write_text("size,smoker,b\n" + "".join(f"{i},{'ny'[i % 2]},{i % 2}\n" for i in range(9)))
    own = load(path, target="b", standardize=False, encoding="dummies")
    assert (own.x[:, 0] == np.arange(9)).all()
    smoker = own.column("smoker")
    assert smoker.positions == (1, 2)
    assert (own.x[:, 1:] == np.eye(2)[np.arange(9) % 2]).all()
    assert (smoker.values == np.eye(2)).all()
    assert load(path, target="b").x.shape == (9, 2)


ROWS = "age,town,income\n" + "".join(f"{20 + i}.5,Zürich,{i % 2}\n" for i in range(12))


@pytest.mark.parametrize(
    ("name", "change", "encoding", "options"),
    [
        ("a.csv", lambda text: text, "utf-16", {}),
        ("A.CSV", lambda text: text, "latin-1", {"text_encoding": "latin-1"}),
        ("a.tsv", lambda text: text.replace(",", "\t"), "utf-8", {}),
        ("a.data", lambda text: text.replace(",", "|"), "utf-8-sig", {}),
        (
            "a.csv",
            lambda text: text.replace(",", ";").replace(".", ","),
            "utf-8",
            {"decimal": ","},
        ),
        ("a.csv", lambda text: "sep=;\n" + text.replace(",", ";"), "utf-8", {}),
    ],
)
def test_tables_of_any_encoding_and_separator(tmp_path, name, change, encoding, options):
    (tmp_path / "plain.csv").write_text(ROWS, encoding="utf-8")
    (tmp_path / name).write_bytes(change(ROWS).encode(encoding))
    plain = load(tmp_path / "plain.csv", target="income")
    other = load(tmp_path / name, target="income", **options)
    assert (plain.x == other.x).all()
    assert [c.name for c in plain.columns] == [c.name for c in other.columns]
    assert plain.column("town").categories == other.column("town").categories


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a,b\né,1\n".encode("latin-1"), "text_encoding='latin-1'"),
        (b"a,b\n1e39,1\n2,0\n3,1\n", "column 'a' holds 1e.39, beyond float32"),
        (b"a,b\n" + b"x" * 140_000 + b",1\n", "is no table .field larger"),
    ],
)
def test_files_that_are_no_tables_are_named(tmp_path, content, message):
    (tmp_path / "a.csv").write_bytes(content)
    with pytest.raises(ValueError, match=message):
        load(tmp_path / "a.csv", target="b")


@pytest.mark.parametrize("ending", ["gz", "bz2", "xz", "zip"])
def test_compressed_tables(tmp_path, ending):
    (tmp_path / "plain.csv").write_text(ROWS, encoding="utf-8")
    path, content = tmp_path / f"people.csv.{ending}", ROWS.encode()
    if ending == "zip":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("people.csv", content)
    else:
        path.write_bytes({"gz": gzip, "bz2": bz2, "xz": lzma}[ending].compress(content))
    plain = load(tmp_path / "plain.csv", target="income")
    assert (load(str(path), target="income").x == plain.x).all()
    whole = path.read_bytes()
    altered = bytes(b ^ 0x55 if 40 <= place < 60 else b for place, b in enumerate(whole))
    for damaged in (whole[:40], altered):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"people.*cannot be unpacked"):
            load(path, target="income")


def test_an_archive_of_several_files_is_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "two.csv.zip", "w") as archive:
        for name in ("a.csv", "b.csv"):
            archive.writestr(name, ROWS)
    with pytest.raises(ValueError, match="the archive holds 2 files, not one"):
        load(tmp_path / "two.csv.zip", target="income")


def test_separators_are_those_of_the_rows(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text('"a,b,c,d";e;y\n' + "".join(f"{i};{i}.5;{i % 2}\n" for i in range(9)))
    assert read_csv(path, "y").names == ("a,b,c,d", "e")
    path.write_text('"a\nunit; x";y\n' + "".join(f"{i};{i % 2}\n" for i in range(9)))
    assert read_csv(path, "y").names == ("a\nunit; x",)
    path.write_text('a,y\n"1\n2",0\n\n3\n')
    with pytest.raises(ValueError, match="has 1 cells in row 5; the header has 2"):
        read_csv(path, "y")


def column_of(tmp_path, cells, **options):
    path = tmp_path / "cells.csv"
    path.write_text("a;y\n" + "".join(f"{cell};{i % 2}\n" for i, cell in enumerate(cells)))
    table = read_csv(path, "y", separator=";", **options)
    return table.values[:, 0].tolist(), table.categories[0]


def test_decimal_commas(tmp_path):
    cells = ("1.250,5", "2,5", "-3.000", "4")
    assert column_of(tmp_path, cells, decimal=",")[0] == [1250.5, 2.5, -3000, 4]
    for cells, decimal in (
        (("0.5", "2,5", "3,5"), ","),
        (("1,3", "2,5", "3,5"), "."),
        (("12%", "13 %", "20%"), "."),
        (("1,000", "2,000", "13,500.5"), "."),
    ):
        with pytest.raises(ValueError, match=f"look like numbers and are none with .*'{decimal}'"):
            column_of(tmp_path, cells, decimal=decimal)
        kept = column_of(tmp_path, cells, decimal=decimal, kinds={"a": "categorical"})
        assert set(kept[1]) == set(cells)
    for cells in (("31.12.2010", "1.1.2011", "2.1.2011"), ("1.2.0", "1.2.1", "1.10.0")):
        assert set(column_of(tmp_path, cells, decimal=",")[1]) == set(cells)


def test_a_few_odd_cells_of_a_numeric_column_are_named(tmp_path):
    with pytest.raises(ValueError, match="'a' holds numbers, but for '-', 'unknown'; leave"):
        column_of(tmp_path, [*map(str, range(60)), "-", "unknown"])
    assert column_of(tmp_path, ["0_1", "1_2", "2_3"])[1] == ("0_1", "1_2", "2_3")


@pytest.mark.parametrize(
    ("cells", "categories"),
    [
        (("0", "-0", "0.0", "1", "1.0", "1"), ("0", "1")),
        (("True", "true", "False"), ("False", "True")),
        (("01", "1", "2"), None),
        (("Yes", "yes", "no"), ("Yes", "no", "yes")),
    ],
)
def test_one_value_in_several_spellings(tmp_path, cells, categories):
    kinds = {"kinds": {"a": "categorical"}}
    assert column_of(tmp_path, cells, **kinds)[1] == (categories or tuple(sorted(cells)))
    (tmp_path / "target.csv").write_text(
        "b;y\n" + "".join(f"{i};{c}\n" for i, c in enumerate(cells))
    )
    table = read_csv(tmp_path / "target.csv", "y", separator=";")
    assert table.classes == len(categories or cells)


def test_numbers_behind_zeros_are_codes_while_they_are_few(tmp_path):
    months = [f"{month:02d}" for month in range(1, 13)]
    assert column_of(tmp_path, months)[1] == tuple(months)
    assert column_of(tmp_path, months, max_categories=11)[1] == ()
    assert column_of(tmp_path, [str(month) for month in range(1, 13)])[1] == ()


def test_numbers_of_many_digits_are_not_one_another(tmp_path):
    cells = ("9007199254740993", "9007199254740992", "9007199254740992.0")
    codes, names = column_of(tmp_path, cells, kinds={"a": "categorical"})
    assert names == ("9007199254740992", "9007199254740993")
    assert codes == [1, 0, 0]
    codes, names = column_of(tmp_path, ("0.0", "1", "2"), categories={"a": ["0", "1"]})
    assert (codes, names) == ([0, 1, 2], ("0", "1", "(missing)"))


def test_a_target_of_decimal_commas_is_refused(tmp_path):
    path = tmp_path / "target.csv"
    path.write_text("a;y\n" + "".join(f"{i};{i},5\n" for i in range(9)))
    with pytest.raises(ValueError, match="column 'y' holds texts such as '0,5' that look like"):
        read_csv(path, "y")
    assert read_csv(path, "y", decimal=",", max_categories=5).classes is None
    assert read_csv(path, "y", task="classification").classes == 9


def test_rows_without_a_target_or_a_client_are_counted(tmp_path):
    path = tmp_path / "people.csv"
    people = ["1,A,mild", "2,,none", "3,NA,none", "4,B,severe", "5,A,", "6,B,mild", "7,,mild"]
    path.write_text("a,site,y\n" + "\n".join(people))
    table = read_csv(path, "y", client="site")
    assert table.group.tolist() == [0, 1, 1]
    assert table.note == (
        "3 of 7 rows have no 'y' (such as 'none') and are left out; "
        "1 of 4 rows have no 'site' (an empty cell) and are left out"
    )


def test_a_sensitive_number_with_one_far_out_is_said_to_be(tmp_path):
    path = tmp_path / "ages.csv"
    path.write_text("age,y\n" + "".join(f"{20 + i},{i % 2}\n" for i in range(40)) + "9999,0\n")
    table = read_csv(path, "y", sensitive="age")
    assert table.note == (
        "of 4 bins of equal width of 'age' one, 20 to 2514.75, holds 40 of 41 records: an answer "
        "tells little"
    )
    assert not read_csv(path, "y").note
    path.write_text("age,y\n" + "".join(f"{20 + i},{i % 2}\n" for i in range(40)))
    assert not read_csv(path, "y", sensitive="age").note


@pytest.mark.parametrize(
    ("cells", "counts_as"),
    [(("a", "b", ""), "the value '(missing)'"), (("1", "2", "3", "?"), "the mean of the others")],
)
def test_rows_without_a_sensitive_value_are_counted(tmp_path, cells, counts_as):
    path = tmp_path / "cells.csv"
    path.write_text("s,b,y\n" + "".join(f"{c},{k},{k % 2}\n" for k in range(9) for c in cells))
    table = read_csv(path, "y", sensitive="s")
    assert table.note == (f"9 of {9 * len(cells)} rows have no 's', which counts as {counts_as}")
    assert not read_csv(path, "y", sensitive="b").note


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"categories": {"a": ["x", "z"]}}, "no row has any of them; there are 0, 1, 2"),
        ({"categories": {"a": ["0", "0"]}}, "categories.'a'. holds '0' more than once"),
        ({"categories": {"a": ["0"]}, "kinds": {"a": "numeric"}}, "that kinds calls numeric"),
        ({"bins": 1}, "bins=1 tell no numbers apart"),
        ({"client": "y"}, "client='y' is the target"),
        ({"drop": ["y"]}, "holds 'y', which is the target"),
    ],
)
def test_arguments_that_exclude_each_other(tmp_path, options, message):
    with pytest.raises(ValueError, match=message):
        column_of(tmp_path, map(str, range(9)), **options)


def test_large_whole_numbers_are_standardised_in_float64(tmp_path):
    first, path = 9_007_199_254_740_000, tmp_path / "ids.csv"
    path.write_text("id,y\n" + "".join(f"{first + i},{i % 2}\n" for i in range(90)))
    assert len(np.unique(load(path, target="y").x)) == 90
    with pytest.raises(
        ValueError, match=r"has 90 different whole numbers .* float32 keeps 1; leave"
    ):
        load(path, target="y", standardize=False)
    with pytest.raises(
        ValueError, match=r"sensitve=\.\.\. is no option of a table; it has target, "
    ):
        load(path, target="y", sensitve="id")
    with pytest.raises(FileNotFoundError, match=r"path='.*none\.csv' is no file"):
        load(tmp_path / "none.csv", target="y")


def test_spellings_that_differ_in_little_are_noted(tmp_path):
    path = tmp_path / "joined.csv"
    incomes = ["<=50K", ">50K", "<=50K.", ">50K."]
    rows = [f"{i * 7 % 40},{incomes[i % 4]},{['Ana', 'ana', '1.0', '1'][i % 4]}" for i in range(80)]
    path.write_text("age,income,owner\n" + "\n".join(rows))
    assert "'<=50K' and '<=50K.', which count as different" in read_csv(path, "income").note
    note = read_csv(path, "income", client="owner").note
    assert "'owner' holds '1' and '1.0', which count as different values" in note
    path.write_text(path.read_text().replace("1.0", "2"))
    assert "'owner' holds 'Ana' and 'ana'" in read_csv(path, "income", client="owner").note


def test_zero_begins_no_thousands(tmp_path):
    path = tmp_path / "shares.csv"
    path.write_text("a;y\n" + "".join(f"0.{100 + i * 37 % 900};{i % 2}\n" for i in range(40)))
    with pytest.raises(ValueError, match=r"'0\.100' that look like numbers and are none with dec"):
        read_csv(path, "y", decimal=",")


@pytest.mark.parametrize("text", ["\N{MINUS SIGN}{}.5", "${}.50", "{}\N{NO-BREAK SPACE}500"])
def test_few_texts_that_were_meant_as_numbers_are_refused(tmp_path, text):
    path = tmp_path / "odd.csv"
    path.write_text("a;y\n" + "".join(f"{text.format(1 + i % 4)};{i % 2}\n" for i in range(40)))
    with pytest.raises(ValueError, match="look like numbers and are none"):
        read_csv(path, "y")
