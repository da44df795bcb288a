"""Every command of the documents asks for something that there is."""

import functools
import importlib
import importlib.util
import re
import shlex
from pathlib import Path

import pytest
import tyro

import attacks
from benchmarks import sweep
from benchmarks.suites import SUITES
from tests import readme

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])


def commands():
    """Sweeps that stand in code blocks and in code spans."""
    for page in PAGES:
        text = page.read_text().replace("\\\n", " ")
        for words in re.findall(r"python -m benchmarks\.sweep([^`\n#&|]*)", text):
            yield page.name, " ".join(words.split())


COMMANDS = sorted(set(commands()))


@pytest.mark.parametrize(("page", "words"), COMMANDS, ids=lambda text: text[:60])
def test_a_command_selects_jobs(page, words, tmp_path):
    arguments = shlex.split(words.replace("DATA", str(tmp_path)))
    if any(word.isupper() or "..." in word for word in arguments):
        pytest.skip("a pattern of commands, not one")
    if arguments and arguments[0] != "--list":
        assert sweep.select(tyro.cli(sweep.Arguments, args=arguments))


def test_links_between_pages_lead_somewhere():
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#]+)", page.read_text()):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.name} links {target}"


def test_tables_are_whole():
    for page in PAGES:
        for below in re.findall(r"^\| ---.*\n(.*)$", page.read_text(), re.MULTILINE):
            assert below.startswith("|"), f"{page.name}: a table has {below!r} for a row"


def test_the_code_of_a_page_that_needs_an_extra():
    """Other pages' code runs with the wheel alone (`make wheel`)."""
    assert readme.wrong_on("docs/epsilon.md") == 0


def test_every_page_is_in_the_site():
    told = (ROOT / "mkdocs.yml").read_text()
    named = set(re.findall(r": ([\w/-]+\.md)$", told, re.MULTILINE))
    assert named == {str(p.relative_to(ROOT / "docs")) for p in (ROOT / "docs").rglob("*.md")}


WHICH = (ROOT / "docs/which-attack.md").read_text()


def test_every_attack_for_a_situation_exists():
    named = set(re.findall(r"`(\w+)`", WHICH)) - {"explained", "allowed"}
    assert named <= set(attacks.__all__), named - set(attacks.__all__)


COVERAGE = (ROOT / "docs/results/coverage.md").read_text()


@pytest.mark.parametrize(
    "name", sorted(set(re.findall(r"`((?:attacks|jaxfl)\.[\w.]+)`", COVERAGE)))
)
def test_what_covers_a_paper_exists(name):
    parts = name.split(".")
    place = max(n for n in range(1, len(parts)) if importlib.util.find_spec(".".join(parts[:n])))
    functools.reduce(getattr, parts[place:], importlib.import_module(".".join(parts[:place])))


def test_tables_files_and_tests_that_cover_a_paper_exist():
    for suite, table in re.findall(r"`(\w+)/(\w+)`", COVERAGE):
        assert SUITES[suite].table(table)
    for file, test in re.findall(r"`([\w/]+\.py)(?:::(\w+))?`", COVERAGE):
        text = (ROOT / file).read_text()
        assert not test or f"def {test}(" in text, f"{file} has no {test}"


def test_no_row_of_the_coverage_is_empty():
    rows = [line for line in COVERAGE.splitlines() if line.startswith("|")]
    assert len(rows) > 150
    for row in rows:
        assert all(cell.strip() for cell in row.strip("|").split("|")), row
