#!/usr/bin/env bash
# Everything that needs an NVIDIA GPU, on a machine where nothing can be installed.
#
#     tools/gpu_check.sh [FOLDER [STAGE ...]]         e.g. results tests
#
# Stages, in this order if none is named:
#     tests       the files of tests/gpu, each in a process of its own, 280 s each
#     bench       training steps beside PyTorch and torch.compile (BENCH=gpu)
#     train       npgpt train --preset char-gpu; TinyShakespeare in data/tinyshakespeare, or NPGPT_DATA_DIR
#
# FOLDER (gpu_check by default) gets environment.txt and a file for each stage, written as it runs: it stays if
# this script is ended early. PYTHON=python3 is the default. The exit status is 1 if something failed or was skipped.
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
    "$python" -m pip list 2> /dev/null | grep -iE '^(numpy|cupy|jax|torch|triton|nvidia|cuda|pytest)'
} > "$out/environment.txt" 2>&1

tests() {
    for f in model training; do
        # An interrupt at the limit, so that pytest reports what it has.
        timeout --signal=INT --kill-after=5 280 "$python" -m pytest -v --durations=5 --tb=short -p no:cacheprovider \
            -o addopts=-rs -o faulthandler_timeout=90 "tests/gpu/test_$f.py" > "$out/tests-$f.log" 2>&1
        code=$?
        # Tests that do not find the GPU are skipped, and pytest is content.
        if [ "$code" != 0 ] || tail -n 1 "$out/tests-$f.log" | grep -q skipped; then status=1; fi
        echo "tests-$f.log: exit status $code (124: it took too long); $(tail -n 1 "$out/tests-$f.log")"
    done
}

bench() { "$python" tools/bench ${BENCH:-gpu} --out-dir "$out" || status=1; }     # each side has its own time limit

train() {
    "$python" -m npgpt train --kernels xla --device gpu:0 --preset char-gpu --dtype bfloat16 --out-dir "$out/run" \
        > "$out/train.log" 2>&1 || status=1
    tail -n 3 "$out/train.log"
}

for stage in "${@:-tests bench train}"; do
    for each in $stage; do
        case $each in
            tests | bench | train) "$each" ;;
            *) echo "not a stage: $each" >&2; exit 2 ;;
        esac
    done
done
exit "$status"
