"""Several processes that train as one, by XLA: each has its rows of every batch, and JAX adds up the gradients.

All run the same command, read the same corpus and draw the same batches. Only the first prints, and writes files. If
one of them ends, all end.
"""

import contextlib
import ctypes
import os
import signal
import sys
import threading
import traceback

from npgpt.errors import UserError, one_line

# Variables that have the number of processes and the number of this one: JAX's, MPICH's, Open MPI's, SLURM's.
LAUNCHERS = {"JAX_NUM_PROCESSES": "JAX_PROCESS_ID", "PMI_SIZE": "PMI_RANK",
             "OMPI_COMM_WORLD_SIZE": "OMPI_COMM_WORLD_RANK", "SLURM_STEP_NUM_TASKS": "SLURM_PROCID"}
SILENT = 20         # seconds without a sign of life after which a process is given up
LOST = "another process has ended or does not answer: training stops, continue with --resume"
ENDING = threading.Lock()       # held by the thread that says so: JAX's may notice it while Python's does


def launched():
    """Return how many processes were started, and the number of this one, from 0."""
    for count, number in LAUNCHERS.items():
        if os.environ.get(count, "").isdigit() and os.environ.get(number, "").isdigit():
            return int(os.environ[count]), int(os.environ[number])
    return 1, 0


def is_first():
    return launched()[1] == 0


@contextlib.contextmanager
def connected():
    """Within it, the processes are connected. Raises UserError if another one ends."""
    count, number = launched()
    if count == 1:
        yield
        return
    os.environ["JAX_ENABLE_PREEMPTION_SERVICE"] = "false"       # it would handle SIGTERM
    from npgpt.engine.xla import jax  # says what to install if it is missing

    replace_messages_of_jax()
    on_this_machine = os.environ.get("MPI_LOCALNRANKS", os.environ.get("OMPI_COMM_WORLD_LOCAL_SIZE"))
    jax_finds_it = {"JAX_COORDINATOR_ADDRESS", "SLURM_JOB_ID", "OMPI_MCA_orte_hnp_uri"} & os.environ.keys()
    address = gpu = None
    if on_this_machine == str(count) and not jax_finds_it:
        address, gpu = f"127.0.0.1:{61440 + os.getppid() % 4096}", number       # all have the launcher's id
    try:
        jax.distributed.initialize(address, count, number, gpu, heartbeat_timeout_seconds=SILENT)
        yield
    except (RuntimeError, ValueError) as error:
        if "Gloo" in str(error):        # the library by which JAX connects CPUs
            ENDING.acquire()
            raise UserError(LOST) from None
        if not is_connected():
            raise UserError(f"{count} processes were started, but do not meet ({one_line(error, 200)}): set "
                            "JAX_COORDINATOR_ADDRESS to the first machine and a port, as in node1:5000") from None
        raise


def replace_messages_of_jax():
    """Print one line instead of what JAX's libraries print when they abort a process because another one has ended."""
    nowhere, err = os.open(os.devnull, os.O_WRONLY), os.dup(2)
    out = os.dup(1) if is_first() else nowhere
    sys.stdout = open(out, "w", buffering=1, encoding=sys.stdout.encoding, errors="replace")
    sys.stderr = open(err, "w", buffering=1, encoding=sys.stderr.encoding, errors="replace")
    os.dup2(nowhere, 1)         # the libraries print to 1 and 2
    os.dup2(nowhere, 2)

    @ctypes.CFUNCTYPE(None, ctypes.c_int)
    def say_why(number):
        ENDING.acquire()
        os.write(err, f"npgpt: {LOST}\n".encode())
        os._exit(2)

    ctypes.pythonapi.Py_IncRef(ctypes.py_object(say_why))       # it is needed until the end
    ctypes.CDLL(None).signal(signal.SIGABRT, say_why)           # a handler of Python's would not run any more


def is_connected():
    return "jax" in sys.modules and sys.modules["jax"].distributed.is_initialized()


def end_if_failed(code):
    """End this process at once if it has failed: at exit, JAX waits for the others, which wait for this one."""
    if code and is_connected():
        if sys.exception():
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
