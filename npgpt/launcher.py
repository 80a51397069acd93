"""The rank of this process and the number of ranks, from the environment variables of mpiexec and srun."""

import os

# The number of ranks. SLURM's is that of its step, because srun may start programs without MPI.
SIZES = ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "PMIX_SIZE", "SLURM_STEP_NUM_TASKS")
RANKS = ("PMI_RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "SLURM_PROCID")


def first():
    """Return whether this process is rank 0; True without a launcher."""
    return number_in(RANKS, 0) == 0


def number_in(names, default):
    """Return the first of these environment variables that is a number."""
    return next((int(os.environ[name]) for name in names if os.environ.get(name, "").isdigit()), default)
