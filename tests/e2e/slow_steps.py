"""`python slow_steps.py SECONDS train ...`: the command line, with a pause before each step.

The pause stands for a step on a device: its time does not depend on what else this machine does.
"""

import sys
import time

from vit_jax.__main__ import main
from vit_jax.run.time_account import process_start_s
from vit_jax.train.hooks.log import LogHook

if __name__ == "__main__":
    next_batch, pause_s = LogHook.next_batch, float(sys.argv[1])

    def paused(self, feed):
        time.sleep(pause_s)
        return next_batch(self, feed)

    LogHook.next_batch = paused
    sys.exit(main(sys.argv[2:], process_start_s()))
