"""Sweeps: many runs, asked for in one Python file, on this machine or on a cluster.

A sweep file imports what it is made of from here:

    from vit_jax.sweep import Job, Selection, product, vary

    def get_sweep(arg=""):
        rates = vary("optimizer.learning_rate", [1e-3, 3e-3])
        for overrides in product(rates, vary("seed", range(3))):
            yield "configs/quickstart.py", overrides
"""

from vit_jax.sweep.expand import chain, product, together, vary
from vit_jax.sweep.jobs import Job, Selection
from vit_jax.sweep.names import folder_name

__all__ = ["Job", "Selection", "chain", "folder_name", "product", "together", "vary"]
