#!/usr/bin/env bash
# Everything that needs an NVIDIA GPU, on a machine where nothing can be installed: the tests in tests/gpu, then
# `python tools/bench gpu`.
#
#     tools/gpu_check.sh [FOLDER [OPTIONS OF tools/bench ...]]        e.g. out --train; PYTHON=python3 is the default
#
# FOLDER (gpu_check by default) gets environment.txt, tests-*.log and the files of the benchmark, each as it comes: what
# was written stays if this script is ended early. The exit status is 1 if a test failed or was skipped, or if a side of
# the benchmark failed or computed something else.
set -uo pipefail

python=${PYTHON:-python3}
out=${1:-gpu_check}
shift $(($# > 0))
mkdir -p "$out" && out=$(cd "$out" && pwd) && cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 2
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1
status=0

{
    nvidia-smi || echo "no nvidia-smi"
    "$python" --version
    "$python" -m pip list 2> /dev/null | grep -iE '^(numpy|cupy|torch|triton|nvidia|cuda|ml.dtypes|pytest)'
    nvcc --version || echo "no nvcc"
    cc --version || echo "no C compiler"
} > "$out/environment.txt" 2>&1

for f in matmul kernels model training; do
    log=$out/tests-$f.log
    timeout -k 5 105 "$python" -m pytest "tests/gpu/test_$f.py" -v --tb=short --durations=5 -p no:cacheprovider \
        -o addopts= > "$log" 2>&1
    code=$?
    # If the tests do not find the GPU they are skipped, and pytest is content.
    if [ "$code" != 0 ] || tail -n 1 "$log" | grep -q skipped; then status=1; fi
    echo "test_$f: exit status $code (124: it took more than 105 s); $(tail -n 1 "$log")"
done

# Each side has a time limit of its own.
"$python" tools/bench gpu --out-dir "$out" "$@" || status=1
exit "$status"
