"""Sweeps: many runs, listed in one Python file, run on this machine or on a cluster.

A sweep file imports its building blocks from here:

    from vit_jax.sweep import Job, Selection, product, vary

    def get_sweep(arg=""):
        rates = vary("optimizer.learning_rate", [1e-3, 3e-3])
        for overrides in product(rates, vary("seed", range(3))):
            yield "configs/quickstart.py", overrides

The files of the jobs' folders are the only state of a sweep. Data flow one way:

    sweep_file   FILE.py -> `jobs` and `selection`s
    plan         -> jobs with names, folders, checked configs and needs
    state        plan and folders -> the state of every job; makes selections; writes sweep.json
    scheduler    starts jobs that are ready on an executor: `local` or `slurm`
    job_process  runs one job and records its end in the job's folder; see `run.job_folder`
"""

from vit_jax.sweep.jobs import Job, folder_name, product, vary
from vit_jax.sweep.selection import Selection

__all__ = ["Job", "Selection", "folder_name", "product", "vary"]
