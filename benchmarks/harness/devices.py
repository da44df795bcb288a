"""The devices of this process, made ready before JAX is first used: every CPU core one of its own,
programs kept between runs, and compilers of accelerators told not to try kernels out."""

import hashlib
import os
import platform
from importlib.metadata import version
from pathlib import Path

import jax

from jaxfl.datasets.sources import cache_dir

UNTRIED = "--xla_gpu_autotune_level=0 --xla_gpu_enable_triton_gemm=false"
"""By default XLA compiles and times many kernels for each product: on an H200 `l2_lbfgs` took more
than 150 s to compile, and 9 s so (docs/results/speed.md)."""
SOON = "--xla_cpu_use_fusion_emitters=false --xla_llvm_disable_expensive_passes=true"
"""What nearly halves the time to compile on CPUs, for programs a seventh slower: `cos` on 1,000
records took 5.6 s to compile in place of 10.0, and 27.0 ms an iteration in place of 23.6
(`python -m benchmarks.throughput attacks`, with these as XLA_FLAGS and without)."""
KNOWN = ("0.10.", "0.11.")
"""Versions of jaxlib that know these flags; it ends the process on one that it does not know."""


def prepare_devices(*, cores: bool = True, soon: bool = False) -> None:
    """Make the devices ready. Call before JAX is first used; what is running already, as in a
    notebook, stays as it is, and so does what the environment says.

    Args:
      cores: whether every core is a device, so that members run side by side; if not, one device
        has them all, as in a program of one's own.
      soon: whether programs are to be compiled soon rather than run fast: those of small sizes,
        which compile for longer than they run.
    """
    if version("jaxlib").startswith(KNOWN):
        given = os.environ.get("XLA_FLAGS", "")
        wanted = [*UNTRIED.split(), *(SOON.split() if soon else ())]
        missing = [flag for flag in wanted if flag.partition("=")[0] not in given]
        os.environ["XLA_FLAGS"] = " ".join([given, *missing]).strip()
    if not jax.config.jax_compilation_cache_dir:  # type: ignore[attr-defined]
        jax.config.update("jax_compilation_cache_dir", str(_programs()))
        # Short ones too: a small suite has hundreds.
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    if not cores:
        return
    try:
        jax.config.update("jax_num_cpu_devices", os.cpu_count() or 1)
    except RuntimeError:  # JAX is running already
        return


def _programs() -> Path:
    """Where compiled programs are kept: apart for processors of each kind, on which a home folder
    may be shared."""
    try:
        facts = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        facts = [platform.processor()]
    kind = sorted({line for line in facts if line.startswith(("flags", "Features", "model name"))})
    digest = hashlib.sha256("\n".join(kind or facts).encode()).hexdigest()[:8]
    return cache_dir() / "programs" / f"{platform.machine()}-{digest}"
