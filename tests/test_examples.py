"""The examples run, and say what they are there to say."""

import ast
import runpy
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
SAYS = {
    "new_attack": ("own/toy", "holds: blind_to_another_clients_messages"),
    "own_model": ("NNX: 1.000", "Equinox: 1.000", "Haiku: 1.000"),
    "own_run": ("closed_form: MISFIT", "batches", "gls: OK"),
    "own_table": ("Yes: someone who reads what a client sends", "Private training"),
    "secure_aggregation": ("F1 at one half: 1.0",),
    "whole_records": ("certified: 30 of 30", "of the client: 30", "apart: True"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(SAYS))
def test_an_example_runs(name, capsys):
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    said = " ".join(capsys.readouterr().out.split())
    assert all(words in said for words in SAYS[name]), said


@pytest.mark.parametrize("name", sorted(SAYS))
def test_an_example_is_a_notebook(name):
    """Its cells are its code, in order, so that what runs as a script runs as a notebook."""
    jupytext = pytest.importorskip("jupytext")
    path = EXAMPLES / f"{name}.py"
    cells = jupytext.read(path).cells
    assert len(cells) > 2
    together = "\n".join(cell.source for cell in cells if cell.cell_type == "code")
    assert ast.dump(ast.parse(together)) == ast.dump(ast.parse(path.read_text()))


def test_every_example_is_run():
    assert {path.stem for path in EXAMPLES.glob("*.py")} == set(SAYS)
