"""Sweeps: many runs, listed in one Python file, run on this machine or on a cluster.

A sweep file imports its building blocks from here:

    from vit_jax.sweep import Job, Selection, product, vary

    def get_sweep(arg=""):
        rates = vary("optimizer.learning_rate", [1e-3, 3e-3])
        for overrides in product(rates, vary("seed", range(3))):
            yield "configs/quickstart.py", overrides
"""

from vit_jax.sweep.sweep_file import Job, Selection, folder_name, product, vary

__all__ = ["Job", "Selection", "folder_name", "product", "vary"]
