"""Files and options of a recorded audit that do not go together."""

import re
from pathlib import Path

import pytest

from benchmarks import audit
from tests.benchmarks.test_audit import RECORDED, RECORDINGS


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--hidden", "7"], r"By --csv the model takes 8 inputs \(.*by --hidden '7'"),
        (["--drop", "smoker", "--sensitive", "owner"], "A column too many goes to --drop"),
        (["--sensitive", "default"], "'default' is the target, the client or dropped"),
    ],
)
def test_files_of_another_model_name_the_options(
    words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["--messages", str(RECORDINGS / "pytorch"), *RECORDED, *words, "--out", str(tmp_path)]
    assert audit.main(asked) == 2
    assert re.search(said, capsys.readouterr().err)
