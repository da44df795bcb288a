"""A CSV file as a source."""

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
            "column 'a' is numeric but could not convert",
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
