"""Several processes that train as one, by XLA: each has its rows of every batch.

JAX connects them, and adds up their gradients. All run the same command, read the same corpus and
draw the same batches. Only the first prints, and writes files. If one of them ends, all end.
"""

import contextlib
import ctypes
import os
import signal
import sys
import threading
import traceback

from npgpt.errors import UserError, one_line

# The variables of launchers: how many processes there are, and the number of this one.
LAUNCHERS = {
    "JAX_NUM_PROCESSES": "JAX_PROCESS_ID",  # JAX's own
    "PMI_SIZE": "PMI_RANK",  # MPICH
    "OMPI_COMM_WORLD_SIZE": "OMPI_COMM_WORLD_RANK",  # Open MPI
    "SLURM_STEP_NUM_TASKS": "SLURM_PROCID",
}
SILENT = 20  # seconds without a heartbeat after which a process counts as lost
LOST = "another process has ended or does not answer: training stops, continue with --resume"
ENDING = threading.Lock()  # of the thread that says so: JAX's and Python's notice it at once


def launched():
    """Return how many processes were started, and the number of this one, from 0."""
    for names in LAUNCHERS.items():
        count, number = (os.environ.get(name, "") for name in names)
        if count.isdigit() and number.isdigit():
            return int(count), int(number)
    return 1, 0


def is_first():
    return launched()[1] == 0


@contextlib.contextmanager
def connected():
    """Connect the processes within the block. Raises UserError if another one ends."""
    count, number = launched()
    if count == 1:
        yield
        return
    os.environ["JAX_ENABLE_PREEMPTION_SERVICE"] = "false"  # it would handle SIGTERM
    from npgpt.engine.xla import jax  # says what to install if it is missing

    replace_messages_of_jax()
    address = gpu = None  # JAX may know them
    if all_are_here(count):
        address = f"127.0.0.1:{61440 + os.getppid() % 4096}"  # of one launcher
        gpu = number
    try:
        jax.distributed.initialize(address, count, number, gpu, heartbeat_timeout_seconds=SILENT)
        yield
        jax.distributed.shutdown()  # waits for the others
    except (RuntimeError, ValueError) as error:
        if "Gloo" in str(error):  # the library by which JAX connects CPUs
            ENDING.acquire()
            raise UserError(LOST) from None
        if not is_connected():
            raise UserError(
                f"{count} processes cannot connect ({one_line(error, 200)}): set "
                "JAX_COORDINATOR_ADDRESS to the first one's machine and a port, as in node1:5000"
            ) from None
        raise


def all_are_here(count):
    """Return whether all processes are on this machine, and JAX lacks an address for them."""
    jax_knows = {"JAX_COORDINATOR_ADDRESS", "SLURM_JOB_ID", "OMPI_MCA_orte_hnp_uri"}
    here = os.environ.get("MPI_LOCALNRANKS", os.environ.get("OMPI_COMM_WORLD_LOCAL_SIZE"))
    return here == str(count) and not jax_knows & os.environ.keys()


def replace_messages_of_jax():
    """Print one line instead of JAX's many when it aborts a process because another has ended."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    err = os.dup(2)
    out = os.dup(1) if is_first() else nowhere
    for name, file in {"stdout": out, "stderr": err}.items():
        stream = getattr(sys, name)
        new = open(file, "w", 1, encoding=stream.encoding, errors=stream.errors)
        setattr(sys, name, new)
    os.dup2(nowhere, 1)  # JAX's libraries print to 1 and 2
    os.dup2(nowhere, 2)

    @ctypes.CFUNCTYPE(None, ctypes.c_int)
    def say_why(number):
        ENDING.acquire()
        os.write(err, f"npgpt: {LOST}\n".encode())
        os._exit(2)

    ctypes.pythonapi.Py_IncRef(ctypes.py_object(say_why))  # it is needed until the end
    ctypes.CDLL(None).signal(signal.SIGABRT, say_why)  # a handler of Python's would not run


def is_connected():
    return "jax" in sys.modules and sys.modules["jax"].distributed.is_initialized()


def end_if_failed(code):
    """End this process at once if it has failed: at exit, JAX would wait for the others."""
    if code and is_connected():
        if sys.exception():
            traceback.print_exc()
        for stream in filter(None, (sys.stdout, sys.stderr)):
            stream.flush()
        os._exit(code)
