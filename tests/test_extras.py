"""Without an extra's packages what needs them says which extra has them; `make wheel` runs the
pages' code without any."""

import subprocess
import sys

import jax.numpy as jnp
import pytest

from attacks.metrics import ssim
from jaxfl.accounting import epsilon, noise_multiplier
from jaxfl.datasets import load

PRIVATE = {"records": 100, "batch_size": 10, "steps": 10, "delta": 1e-5}
NEEDED = [
    ("dp_accounting", lambda: epsilon(1.0, **PRIVATE), "privacy"),
    ("dp_accounting", lambda: noise_multiplier(1.0, **PRIVATE), "privacy"),
    ("dm_pix", lambda: ssim(jnp.zeros((16, 16, 1)), jnp.zeros((1, 16, 16, 1))), "images"),
    ("tensorflow_datasets", lambda: load("adult"), "data"),
]


@pytest.mark.parametrize(("package", "call", "extra"), NEEDED)
def test_a_package_that_is_missing_is_named_with_its_extra(package, call, extra, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, "jaxfl.datasets.builders", raising=False)
    with pytest.raises(ModuleNotFoundError, match=rf"{package}.* pip install 'jaxfl\[{extra}\]'"):
        call()


def test_a_command_without_the_extra_bench_says_so():
    code = "import sys; sys.modules['tyro'] = None; import benchmarks.sweep"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ended.returncode == 1
    last = ended.stderr.strip().splitlines()[-1]
    assert last == "ModuleNotFoundError: tyro is not installed: pip install 'jaxfl[bench]'"
