#!/usr/bin/env bash
# What an accelerator does, into one folder: benchmarks/accelerator.sh FOLDER [experiments of throughput]
#   throughput.csv, .svg, .txt  programs beside the device's limits, many members at once
#   laws.txt                    laws of methods and of the simulation, on the device
#   rows/                       the default suite's first table, to be compared with another machine's
# On a bare machine PYTHON names one that has jax, flax, optax, scipy, scikit-learn, rich, tyro,
# jinja2, matplotlib, jaxtyping, pytest and pytest-xdist; nothing is downloaded.
set -uo pipefail
out=${1:?a folder for results}
shift
python=${PYTHON:-python3}
mkdir -p "$out"
out=$(cd "$out" && pwd)
cd "$(dirname "$0")/.."
export XLA_PYTHON_CLIENT_PREALLOCATE=false # several processes share the device's memory
failed=0
timeout "${LIMIT:-600}" "$python" -m benchmarks.throughput methods "$@" --size "${SIZE:-full}" --repeats 1 \
  --out "$out/throughput.csv" 2>&1 | tee "$out/throughput.txt" || failed=1
# Compilers try no kernels out, as `benchmarks.harness.devices` has it for the programs above.
XLA_FLAGS="--xla_gpu_autotune_level=0 --xla_gpu_enable_triton_gemm=false" \
  timeout "${LIMIT:-600}" "$python" -m pytest -q -n "${JOBS:-8}" -p no:cacheprovider -p no:benchmark tests/laws/test_method_laws.py \
  tests/laws/test_simulation_laws.py -k "${LAWS:-misfit or simulation or client or declaration}" 2>&1 |
  tee "$out/laws.txt" || failed=1
timeout "${LIMIT:-600}" "$python" -m benchmarks.sweep quick/attributes --where "${ROWS:-dataset=digits}" \
  --out "$out/rows" 2>&1 | tee "$out/rows.txt" || failed=1
exit "$failed"
