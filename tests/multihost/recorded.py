"""`python recorded.py FILE COMMAND ...` runs a command and records the rows of its batches.

With RECORD_STATES set, FILE.states gets a hash of the whole training state, gathered from all
processes, whenever a state is restored or saved. The process with the number STUCK_AT_SAVE never
saves; the others wait for it for 3 s. Each step takes SECONDS_PER_STEP at least.
"""

import hashlib
import json
import os
import sys
import threading
import time
from pathlib import Path


def main() -> int:
    from vit_jax.__main__ import main as command_line
    from vit_jax.train import feed, session

    put = feed.to_devices
    if "RECORD_STATES" in os.environ:
        _note_states(session, Path(sys.argv[1] + ".states"))
    if "STUCK_AT_SAVE" in os.environ:
        _get_stuck(f"--process_id={os.environ['STUCK_AT_SAVE']}" in sys.argv)
    with Path(sys.argv[1]).open("a", encoding="utf-8") as file:

        def noting(batch, mesh):
            rows = zip(batch["image"], batch["label"], strict=True)
            hashes = [hashlib.sha256(i.tobytes() + n.tobytes()).hexdigest()[:8] for i, n in rows]
            file.write(json.dumps(hashes) + "\n")
            file.flush()
            time.sleep(float(os.environ.get("SECONDS_PER_STEP", "0")))
            return put(batch, mesh)

        feed.to_devices = noting
        return command_line(sys.argv[2:])


def _note_states(session, path):
    from vit_jax.run.checkpoints import CheckpointFolder

    restore, save = session.restore_or_init, CheckpointFolder.save

    def note(what, step, state):
        with path.open("a") as file:
            file.write(json.dumps([what, int(step), _digest(state)]) + "\n")

    def restoring(*args):
        start = restore(*args)
        if start.step:
            note("restored", start.step, start.state)
        return start

    def saving(self, step, state, **others):
        note("saved", step, state)
        save(self, step, state, **others)

    session.restore_or_init, CheckpointFolder.save = restoring, saving


def _get_stuck(here):
    from vit_jax.run import checkpoints
    from vit_jax.run.checkpoints import CheckpointFolder

    checkpoints.BARRIER_TIMEOUT_S = 3.0

    def never(self, step, state, **others):
        threading.Event().wait()

    if here:
        CheckpointFolder.save = never


def _digest(state):
    import jax
    import numpy as np
    from jax.experimental.multihost_utils import process_allgather

    found = hashlib.sha256()
    for path, leaf in jax.tree_util.tree_leaves_with_path(state):
        value = np.asarray(process_allgather(leaf, tiled=True))
        assert value.shape == leaf.shape
        found.update(f"{jax.tree_util.keystr(path)} {value.dtype} {value.shape}".encode())
        found.update(value.tobytes())
    return found.hexdigest()


if __name__ == "__main__":
    sys.exit(main())
