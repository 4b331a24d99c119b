"""Sweeps: many runs, listed in one Python file, run on this machine or on a cluster.

A sweep file imports its building blocks from here:

    from vit_jax.sweep import Job, Selection, product, vary

    def get_sweep(arg=""):
        rates = vary("optimizer.learning_rate", [1e-3, 3e-3])
        for overrides in product(rates, vary("seed", range(3))):
            yield "configs/quickstart.py", overrides

The files of the jobs' folders are the only state of a sweep. Data flow one way:

    sweep_file   FILE.py -> jobs and selections
    plan         -> jobs with names, folders, checked configs and needs; `selection` checks splits
    records      writes sweep.json and job.json; checks that a folder holds the same sweep
    status       plan and folders -> the state of every job; makes selections
    scheduler    starts jobs that are ready on an executor: `local` or `slurm`
    job_process  runs one job and records its end in the job's folder; see `job_folder`
"""

from vit_jax.sweep.sweep_file import Job, Selection, folder_name, product, vary

__all__ = ["Job", "Selection", "folder_name", "product", "vary"]
