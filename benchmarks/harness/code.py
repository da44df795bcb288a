"""Which code measures a job: a digest of its sources, by which a resumed sweep tells its own rows
from those of other code."""

import ast
import functools
import hashlib
import importlib.util
import inspect
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.harness.jobs import Job

MEASURING = (
    *("jaxfl", "attacks"),
    *("benchmarks.scenarios", "benchmarks.measurements", "benchmarks.harness.engines"),
)
"""Packages and modules that a value depends on. Suites do not belong: what they set is in a job's
key."""
HERE = ("jaxfl", "attacks", "benchmarks")


def code_of(job: Job) -> str:
    """A digest of the statements that measure a job: those of `MEASURING`, and of the modules of
    its experiment and method where these come from outside. Comments, docstrings and layout do
    not count."""
    return _digest_of((job.cell.experiment.run, job.how.run, job.how.learns))


@functools.cache
def _digest_of(functions: tuple[Callable[..., Any] | None, ...]) -> str:
    outside = dict.fromkeys(_source(function) for function in functions if _is_outside(function))
    return hashlib.sha256("".join([_ours(), *outside]).encode()).hexdigest()[:12]


@functools.cache
def _ours() -> str:
    sources = [path.read_text(encoding="utf-8") for name in MEASURING for path in _files(name)]
    return hashlib.sha256("\n".join(map(statements, sources)).encode()).hexdigest()


def _files(name: str) -> Iterator[Path]:
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        raise ImportError(f"{name} has no source")
    path = Path(spec.origin)
    return iter(sorted(path.parent.rglob("*.py"))) if path.stem == "__init__" else iter([path])


def statements(source: str) -> str:
    """What a source does, without its comments, docstrings and layout."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        for name in ("body", "orelse", "finalbody"):
            block = getattr(node, name, None)
            if isinstance(block, list):
                setattr(node, name, [each for each in block if not _is_text(each)])
    return ast.dump(tree)


def _is_text(node: ast.AST) -> bool:
    if not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
        return False
    return isinstance(node.value.value, str)


def _is_outside(function: Callable[..., Any] | None) -> bool:
    module = getattr(_innermost(function), "__module__", None) or ""
    return function is not None and module.partition(".")[0] not in HERE


def _innermost(function: Any) -> Any:
    while isinstance(function, functools.partial):
        function = function.func
    return inspect.unwrap(function) if callable(function) else function


def _source(function: Any) -> str:
    """Source of the module that a function is written in; of the function alone where the module is
    a notebook; nothing where there is no source."""
    inside = _innermost(function)
    module = inspect.getmodule(inside)
    for place in (module, inside):
        try:
            return statements(textwrap.dedent(inspect.getsource(place)))  # type: ignore[arg-type]
        except (OSError, TypeError, SyntaxError):
            continue
    return ""
