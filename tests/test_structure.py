"""Who may import whom: three packages, and the wings of the benchmarks."""

import ast
import inspect
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
LINES_OF_A_FUNCTION, LINES_OF_A_FILE, BLOCKS_WITHIN_EACH_OTHER = 40, 400, 3
BLOCKS = ast.For | ast.While | ast.If | ast.With | ast.Try
LONG = {
    "tests/bad_input/examples.py": "one call of every public function after the other",
    "tests/bad_input/examples.py: properties": "likewise",
    "tests/bad_input/examples.py: users": "likewise",
    "tests/bad_input/examples.py: local_models": "likewise",
    "tests/bad_input/examples.py: simulation": "likewise",
    "tests/attacks/test_order_noise.py: test_drift_is_a_row_of_noise_per_record": "writes a "
    "covariance out, parameter by parameter",
}
"""What may be longer, and why."""
WINGS = ("harness", "scenarios", "measurements", "suites", "speed", "laws", "audits")
"""Of the benchmarks, from the ground up."""


def imports(path):
    """Dotted names of the modules that a file imports."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def importers(folder):
    return [(path, name) for path in (ROOT / folder).rglob("*.py") for name in imports(path)]


@pytest.mark.parametrize(
    ("folder", "forbidden"),
    [
        ("jaxfl", ("attacks.", "benchmarks.")),
        ("attacks", ("benchmarks.", "jaxfl.datasets")),
        (
            "benchmarks/harness",
            ("attacks.", *(f"benchmarks.{wing}" for wing in WINGS[1:])),
        ),
        ("benchmarks/scenarios", tuple(f"benchmarks.{wing}" for wing in WINGS[2:])),
        ("benchmarks/measurements", tuple(f"benchmarks.{wing}" for wing in WINGS[3:])),
        ("benchmarks/suites", ("benchmarks.speed", "benchmarks.laws", "benchmarks.audits")),
    ],
)
def test_no_arrow_runs_back_up(folder, forbidden):
    pairs = importers(folder)
    assert pairs
    assert not [(path.name, name) for path, name in pairs if f"{name}.".startswith(forbidden)]


def test_measurements_meet_through_scenarios_and_the_harness_alone():
    for path, name in importers("benchmarks/measurements"):
        place = path.relative_to(ROOT / "benchmarks/measurements").parts[0].removesuffix(".py")
        if name.startswith("benchmarks.measurements."):
            other = name.split(".")[2]
            assert other == place, f"{path.name} imports {name}"


def test_every_attack_says_who_it_is_of():
    """A module with an attack that is public names its threat model."""
    import attacks

    public = {getattr(attacks, name) for name in attacks.__all__}
    modules = {each.__module__ for each in public if callable(each) and not isinstance(each, type)}
    shared = ("matching", "metrics", "generators", "candidates", "detector_training", "knowledge")
    for module in modules:
        if module.startswith("attacks.") and module.rpartition(".")[2] not in shared:
            path = ROOT / Path(*module.split(".")).with_suffix(".py")
            assert "Threat model" in path.read_text(), module


def test_what_a_public_function_takes_is_told():
    """Each of three arguments or more stands under `Args`."""
    import attacks
    import jaxfl
    from jaxfl import accounting, datasets, recordings

    for room in (attacks, jaxfl, accounting, datasets, recordings):
        public = {name: getattr(room, name) for name in getattr(room, "__all__", vars(room))}
        for name, function in public.items():
            if not inspect.isfunction(function) or name.startswith("_"):
                continue
            arguments = list(inspect.signature(function).parameters)
            told = (inspect.getdoc(function) or "").partition("Args:\n")[2]
            told = re.split(r"\n(?:Returns|Raises|Warns|Yields):", told)[0]
            missing = [each for each in arguments if not re.search(rf"\b{each}\b", told)]
            assert len(arguments) < 3 or not missing, f"{function.__module__}.{name}: {missing}"


def code_lines(function, lines):
    """Lines of a function's body that are neither its docstring nor comments nor empty."""
    documented = ast.get_docstring(function) is not None
    start = function.body[documented].lineno if len(function.body) > documented else None
    body = lines[start - 1 : function.end_lineno] if start else []
    return sum(bool(line.strip()) and not line.lstrip().startswith("#") for line in body)


def too_long(path):
    lines = path.read_text().splitlines()
    place = path.relative_to(ROOT).as_posix()
    if len(lines) > LINES_OF_A_FILE:
        yield place
    for node in ast.walk(ast.parse("\n".join(lines))):
        if isinstance(node, ast.FunctionDef) and code_lines(node, lines) > LINES_OF_A_FUNCTION:
            yield f"{place}: {node.name}"


def depth(node, inside=0):
    """How deep blocks stand within each other; an `elif` is no deeper than its `if`."""
    deepest = inside
    for field, value in ast.iter_fields(node):
        children = value if isinstance(value, list) else [value]
        for child in children:
            alternative = isinstance(node, ast.If) and field == "orelse" and len(children) == 1
            if not isinstance(child, ast.stmt | ast.ExceptHandler):
                continue
            if isinstance(child, ast.FunctionDef | ast.ClassDef):
                continue
            deeper = isinstance(child, BLOCKS) and not (alternative and isinstance(child, ast.If))
            deepest = max(deepest, depth(child, inside + deeper))
    return deepest


def test_blocks_are_shallow():
    for folder in ("jaxfl", "attacks", "benchmarks"):
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.FunctionDef):
                    assert depth(node) <= BLOCKS_WITHIN_EACH_OTHER, f"{path.name}: {node.name}"


def test_functions_and_files_are_short():
    """Numbers of arguments and branches are the linter's to count."""
    folders = ("jaxfl", "attacks", "benchmarks", "tests")
    paths = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    assert {name for path in paths for name in too_long(path)} == set(LONG)
