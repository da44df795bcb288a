"""Every command of the documents asks for something that there is."""

import re
import shlex
from pathlib import Path

import pytest
import tyro

from benchmarks import sweep

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
