"""Two runs, row by row."""

import pytest

from benchmarks.compare import compared


def test_rows_of_one_place_are_compared_by_their_settings(tmp_path):
    """Whatever order they were measured in; those of another version by their order."""
    head = "suite,table,size,dataset,method,selection,metric,seed,status,value,settings"
    lines = [f"quick,rate,small,bits,cos,none,accuracy,0,ok,{v},rate={v}" for v in (1, 2, 3)]
    runs = {"old": lines, "resumed": lines[::-1], "renamed": [f"{line}.0" for line in lines]}
    for name, rows in runs.items():
        (tmp_path / f"{name}.csv").write_text("\n".join([head, *rows]))
    old = tmp_path / "old.csv"
    assert compared(old, tmp_path / "resumed.csv", 0.0) == ([], 3, 0)
    assert compared(old, tmp_path / "renamed.csv", 0.0) == ([], 3, 3)
    (tmp_path / "empty.csv").write_text(head)
    with pytest.raises(ValueError, match="hold no rows"):
        compared(tmp_path / "empty.csv", tmp_path / "empty.csv", 0.0)
