"""Shared by all tests: a small world whose attack succeeds, and the real data where it is
at hand."""

import dataclasses
import functools
import gc
import os
import tempfile
from importlib.metadata import version
from pathlib import Path

# Tests compile more than they compute: code that is compiled faster and runs slower saves a third
# of their time, and loops compiled the older way as much again. XLA ends the process on a flag that
# it does not know, as a later one may the second.
if version("jaxlib").startswith(("0.10.", "0.11.")):
    # The last two are `benchmarks.harness.devices.SOON`, so that processes of tests compile alike.
    flags = "backend_optimization_level=0 cpu_use_fusion_emitters=false"
    flags += " llvm_disable_expensive_passes=true"
    os.environ.setdefault("XLA_FLAGS", " ".join(f"--xla_{flag}" for flag in flags.split()))
# What one process or module has compiled the others load; set before the processes start, which
# inherit it.
if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
    programs = tempfile.TemporaryDirectory(prefix="jaxfl-programs-")
    os.environ["JAX_COMPILATION_CACHE_DIR"] = programs.name
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"

# Nor need a program say where each of its operations comes from.
os.environ.setdefault("JAX_TRACEBACK_IN_LOCATIONS_LIMIT", "0")

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxfl
from benchmarks.harness import engines, memory

gc.set_threshold(200_000, 50, 100)
"""Tracing makes many small objects that live, among which Python looks for dead ones too often."""
SLOW = {"slow": 1, "very_slow": 2}
"""What `JAXFL_SLOW` must be, at least, for a test with a marker to run."""


def pytest_collection_modifyitems(items):
    """Tests that take long run where `JAXFL_SLOW` says so."""
    level = int(os.environ.get("JAXFL_SLOW") or 0)
    for item in items:
        for name, needed in SLOW.items():
            if item.get_closest_marker(name) and level < needed:
                item.add_marker(pytest.mark.skip(reason=f"JAXFL_SLOW={needed} runs it"))


OLDER_LOOPS = "xla_cpu_use_fusion_emitters=false" in os.environ.get("XLA_FLAGS", "")
compiled_as_by_users = functools.partial(
    jax.jit, compiler_options={"xla_cpu_use_fusion_emitters": True} if OLDER_LOOPS else None
)
"""`jax.jit` with the loops that programs have outside tests: for numbers that must agree to the
last bit, and for those whose rounding later steps magnify."""


ROUNDING = 1e-6
"""By how much numbers of size 1 may differ that are equal on paper: float32 keeps 1.2e-7 of them,
and a model here is some tens of steps of sums of some tens of terms, in whatever order."""


def differences(a, b):
    """Largest absolute difference of each leaf of two pytrees of equal structure, by its name."""
    pairs = zip(jax.tree_util.tree_leaves_with_path(a), jax.tree.leaves(b), strict=True)
    return {
        jax.tree_util.keystr(path): float(jnp.abs(x - y).max()) for (path, x), y in pairs if x.size
    }


def largest_difference(a, b):
    """Largest absolute difference between two pytrees of equal structure."""
    return max(differences(a, b).values())


def assert_same(a, b, why, within=ROUNDING):
    """Two pytrees are equal but for rounding; if not, the message says `why` that is wrong."""
    apart = differences(a, b)
    worst = max(apart, key=lambda leaf: np.nan_to_num(apart[leaf], nan=np.inf))
    assert apart[worst] <= within, f"{why}: {worst or 'it'} differs by {apart[worst]:.3g}"


@dataclasses.dataclass(frozen=True)
class World:
    """Three ragged clients with binary features; the label depends on columns 3 and 4."""

    model: jaxfl.Model
    params: object
    clients: jaxfl.ClientData
    records: list
    key: jax.Array


@pytest.fixture(autouse=True, scope="module")
def release_programs():
    """Compiled programs hold memory mappings, of which a process may have only so many (see
    `benchmarks.harness.engines`)."""
    yield
    engines.forget_programs()
    jax.clear_caches()


@pytest.fixture(autouse=True, scope="session")
def last_method():
    """The method whose laws were tried last, as `["name"]`."""
    return [""]


@pytest.fixture(autouse=True)
def release_programs_between_methods(request, last_method):
    """Before the limit is reached: none may be released while a law counts what is compiled."""
    if getattr(request.node, "originalname", "") == "test_methods_obey":
        method = request.node.callspec.id.partition("-")[0]
        changed, last_method[0] = method != last_method[0], method
        if changed and memory.held_mappings() > engines.MOST_MAPPINGS / 3:
            engines.forget_programs()
            jax.clear_caches()


@pytest.fixture(scope="session")
def world():
    rng = np.random.default_rng(0)
    records = []
    for n in (24, 17, 30):
        x = (rng.random((n, 12)) < 0.4).astype(np.float32)
        records.append((x, (x[:, 3] + 2 * x[:, 4] > 0).astype(int) + (x[:, 5] > 0)))
    model = jaxfl.mlp(12, (16,), 3)
    key = jax.random.key(1)
    return World(model, model.init(key), jaxfl.stack_clients(records), records, key)


@pytest.fixture(scope="session")
def data_dir():
    """The folder with local copies of public sources."""
    folder = os.environ.get("JAXFL_DATA")
    if not folder or not Path(folder).is_dir():
        pytest.skip("JAXFL_DATA names no folder with local copies of the public sources")
    return folder


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A fresh folder for prepared sets."""
    monkeypatch.setenv("JAXFL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"
