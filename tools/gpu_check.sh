#!/usr/bin/env bash
# Everything that needs an NVIDIA GPU, on a machine where nothing can be installed.
#
#     tools/gpu_check.sh [FOLDER [STAGE ...]]         e.g. results tests sanitizer
#
# Stages, in this order if none is named:
#     tests       the files of tests/gpu, each in a process of its own, 105 s each, 200 s for whole models
#     kernels     how long each kernel of a step takes (ROWS="124M baby")
#     sanitizer   compute-sanitizer over the tests of the attention kernels: accesses out of bounds, then races
#     bench       training steps beside PyTorch and torch.compile (BENCH=gpu)
#     train       a run to validation loss 1.47; TinyShakespeare in data/tinyshakespeare, or NPGPT_DATA_DIR
#
# FOLDER (gpu_check by default) gets environment.txt and a file for each stage, as it comes: what was written stays if
# this script is ended early. PYTHON=python3 is the default. The exit status is 1 if something failed or was skipped.
set -uo pipefail

python=${PYTHON:-python3}
out=${1:-gpu_check}
shift $(($# > 0))
mkdir -p "$out" && out=$(cd "$out" && pwd) && cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 2
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}" PATH="$PATH:/usr/local/cuda/bin" PYTHONUNBUFFERED=1
status=0

{
    nvidia-smi || echo "no nvidia-smi"
    "$python" --version
    "$python" -m pip list 2> /dev/null | grep -iE '^(numpy|cupy|torch|triton|nvidia|cuda|ml.dtypes|pytest)'
    nvcc --version || echo "no nvcc"
    cc --version || echo "no C compiler"
} > "$out/environment.txt" 2>&1

# limited SECONDS LOG COMMAND ...: an interrupt at the limit, so that pytest reports what it has; its last line is shown.
limited() {
    local seconds=$1 log=$2 code
    shift 2
    timeout --signal=INT --kill-after=5 "$seconds" "$@" > "$out/$log" 2>&1
    code=$?
    # Tests that do not find the GPU are skipped, and pytest is content.
    if [ "$code" != 0 ] || tail -n 1 "$out/$log" | grep -q skipped; then status=1; fi
    echo "$log: exit status $code (124: it took more than $seconds s); $(tail -n 1 "$out/$log")"
}

options=(--tb=short -p no:cacheprovider -o addopts= -o faulthandler_timeout=90)

tests() {
    for f in matmul kernels model training; do
        limited $([ $f = model ] && echo 200 || echo 105) "tests-$f.log" "$python" -m pytest "${options[@]}" -v \
            --durations=5 "tests/gpu/test_$f.py"
    done
}

sanitizer() {
    # Without CuPy's pool, in which an array ends amid other memory that is there.
    local run="import cupy, pytest, sys; cupy.cuda.set_allocator(None); sys.exit(pytest.main(sys.argv[1:]))"
    for tool in "memcheck --report-api-errors no" racecheck; do
        # The first call of CUDA comes after the imports; a sanitizer that gives up waiting for it checks nothing.
        NPGPT_TEST_KERNELS=gpu limited 150 "sanitizer-${tool%% *}.log" compute-sanitizer --tool $tool \
            --error-exitcode 9 --launch-timeout 120 --target-processes all \
            "$python" -c "$run" "${options[@]}" -v tests/cuda/test_attention.py
        grep "SUMMARY: 0 " "$out/sanitizer-${tool%% *}.log" || { echo "no clean summary"; status=1; }
    done
}

kernels() {
    for row in ${ROWS:-124M baby}; do limited 100 "kernels-$row.md" "$python" tools/bench/kernels.py "$row"; done
}

bench() { "$python" tools/bench ${BENCH:-gpu} --out-dir "$out" || status=1; }     # each side has a limit of its own

train() { "$python" tools/bench --train --out-dir "$out/train" || status=1; }

for stage in "${@:-tests kernels sanitizer bench train}"; do
    for each in $stage; do
        case $each in
            tests | sanitizer | kernels | bench | train) "$each" ;;
            *) echo "not a stage: $each" >&2; exit 2 ;;
        esac
    done
done
exit "$status"
