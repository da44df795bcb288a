"""A CSV file as a source."""

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
        ("a,b\n1,2\n", {"target": "b", "kinds": {"a": "text"}}, "kinds.'a'.='text' is unknown"),
        ("a,b\n1,2\n3\n", {"target": "b"}, "has 1 cells in row 3; the header has 2"),
        ("a,a,b\n1,2,3\n", {"target": "b"}, "two columns named 'a'"),
        ("a,b\n1,1\n2,2\ninf,3\n", {"target": "b"}, "column 'a' holds an infinite value"),
        ("a,b\n1,2\n", {"target": "b", "sensitive": "b"}, "sensitive='b' is the target or dropped"),
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
