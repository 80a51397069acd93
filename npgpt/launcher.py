"""What a launcher of MPI (mpiexec, srun) tells the processes that it starts, in variables of the environment."""

import os

# How many ranks there are. SLURM's for its step, since srun may start programs without MPI.
SIZES = ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "PMIX_SIZE", "SLURM_STEP_NUM_TASKS")
RANKS = ("PMI_RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "SLURM_PROCID")


def first():
    """Whether the launcher calls this process rank 0; also True without a launcher."""
    return number_in(RANKS, 0) == 0


def number_in(names, default):
    """The first of these variables of the environment that holds a number."""
    return next((int(os.environ[name]) for name in names if os.environ.get(name, "").isdigit()), default)
