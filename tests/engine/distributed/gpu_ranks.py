"""npgpt with stand-ins for the GPU and NCCL, for mpiexec: python -m tests.engine.distributed.gpu_ranks GPUS ARGUMENT…

GPUS: how many there are, or for each rank how many it sees: 1,0; with "-" before it there is no NCCL.
"""

import sys
import types

import pytest
from mpi4py import MPI

from npgpt.cli.main import main
from tests import strict_cupy, strict_nccl
from tests.cuda.gpu import install_emulated_gpu

gpus = sys.argv[1].removeprefix("-").split(",")
monkeypatch = pytest.MonkeyPatch()
strict_nccl.install(monkeypatch, lambda unique_id: strict_nccl.Processes(MPI))
install_emulated_gpu(monkeypatch)
strict_cupy.gpu.devices = int(gpus[MPI.COMM_WORLD.rank % len(gpus)])
if sys.argv[1].startswith("-"):
    strict_cupy.cuda.nccl = types.SimpleNamespace(available=False)
code = main(sys.argv[2:])
if MPI.COMM_WORLD.rank == 0:
    waits = {place.rpartition("/")[2].partition(":")[0] for place in strict_cupy.gpu.waits}
    print("waits:", *sorted(waits - {"weakref.py"}))        # from there the kernels' stream is waited for as it ends
sys.exit(code)
