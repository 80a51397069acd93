#!/usr/bin/env bash
# Everything that needs an NVIDIA card, on a machine where nothing can be installed: the tests in tests/gpu, then
# tools/gpu_bench.py. It takes less than eight minutes.
#
#     tools/gpu_check.sh [FOLDER [OPTIONS OF gpu_bench.py ...]]        PYTHON=python3 is the default
#
# FOLDER (gpu_check by default) gets environment.txt, tests.log, tests.xml, bench.json, bench.log and bench.md; the table
# is printed last. The exit status is 0, or 1 where a test failed or was skipped, or one of npgpt's sides failed or
# computed another loss than PyTorch; or 2 without a card.
set -euo pipefail

python=${PYTHON:-python3}
out=${1:-gpu_check}
shift $(($# > 0))
mkdir -p "$out"
out=$(cd "$out" && pwd)
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1
rm -f "$out"/{environment.txt,tests.log,tests.xml,bench.json,bench.log,bench.md}    # of an earlier check

if ! cards=$(nvidia-smi -L 2>&1); then
    echo "gpu_check: no NVIDIA card here: ${cards##*: }" >&2
    exit 2
fi
{
    nvidia-smi
    uname -srm
    "$python" --version
    "$python" -m pip list 2> /dev/null | grep -iE '^(numpy|cupy|torch|triton|nvidia|cuda|ml.dtypes|pytest)' || true
    nvcc --version 2> /dev/null | tail -n 1 || echo "no nvcc"
    cc --version 2> /dev/null | head -n 1 || echo "no C compiler"
} > "$out/environment.txt" 2>&1
echo "$cards"

status=0

# A card that the tests do not see makes them skip: no test may, and there must be some.
timeout -k 10 170 "$python" -m pytest tests/gpu -q -rs -p no:cacheprovider -o addopts= --junitxml="$out/tests.xml" \
    > "$out/tests.log" 2>&1 || { echo "tests: exit status $? of pytest (124: they took more than 170 s)"; status=1; }
tail -n 40 "$out/tests.log" | cut -c -200
if [ -e "$out/tests.xml" ]; then
    "$python" - "$out/tests.xml" << 'END' || status=1
import sys
from xml.etree import ElementTree

suite = ElementTree.parse(sys.argv[1]).find("testsuite")
counts = {name: int(suite.get(name)) for name in ("tests", "failures", "errors", "skipped")}
print("tests:", ", ".join(f"{n} {name}" for name, n in counts.items()))
sys.exit(0 if counts.pop("tests") and not any(counts.values()) else 1)
END
fi

timeout -k 10 250 "$python" tools/gpu_bench.py --seconds 235 --json "$out/bench.json" "$@" \
    > "$out/bench.md" 2> "$out/bench.log" || { echo "gpu_bench: exit status $? (124: it took more than 250 s)"; status=1; }
tail -n 40 "$out/bench.log" | cut -c -200
# Where it was cut off, the figures so far.
if [ ! -s "$out/bench.md" ] && [ -e "$out/bench.json" ]; then
    "$python" tools/gpu_bench.py --show "$out/bench.json" > "$out/bench.md"
fi
if [ "$status" = 0 ]; then
    echo "gpu_check: all well"
else
    echo "gpu_check: not all well, see above and $out"
fi
cat "$out/bench.md"
exit "$status"
