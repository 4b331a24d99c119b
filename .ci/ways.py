"""Prints which files the way of a batch, of random keys and of the state cross, by tracing a run.

python .ci/ways.py     (vit_jax importable). CONTRIBUTING has its lists.
"""

import collections
import functools
import inspect
import logging
import pathlib
import sys
import tempfile

import vit_jax
from vit_jax.config.file import load_config
from vit_jax.run.checkpoints import CheckpointFolder
from vit_jax.train import loop, session
from vit_jax.train.feed import TrainingFeed
from vit_jax.train.saves import Saves
from vit_jax.train.signals import StopSignals

ROOT = f"{pathlib.Path(vit_jax.__file__).parent}/"


class Way:
    """Files of the package -> functions that ran while it was entered.

    With `callee`, a file, only the functions that called one of it.
    """

    def __init__(self, callee=None):
        self.called, self._callee = collections.defaultdict(set), callee

    def __call__(self, frame, event, _):
        if event != "call":
            return
        if self._callee is not None:
            if frame.f_code.co_filename != ROOT + self._callee:
                return
            frame = frame.f_back
        code = frame.f_code
        is_function = code.co_flags & inspect.CO_OPTIMIZED  # The body of a class is none.
        if code.co_filename.startswith(ROOT) and is_function:
            self.called[code.co_filename.removeprefix(ROOT)].add(code.co_name)

    def __enter__(self):
        sys.setprofile(self)

    def __exit__(self, *exception):
        sys.setprofile(None)

    def through(self, owner, name):
        """Traces the calls of a function or method from now on."""
        function = getattr(owner, name)

        @functools.wraps(function)
        def traced(*args, **kwargs):
            with self:
                return function(*args, **kwargs)

        setattr(owner, name, traced)

    def show(self, name):
        """Prints its files, those with most functions first."""
        files = sorted(self.called, key=lambda file: (-len(self.called[file]), file))
        count = sum(map(len, self.called.values()))
        print(f"{name}: {len(files)} files, {count} functions: {', '.join(files)}")


def main():
    """Trains two steps, two more, and a run from its start, and prints the three ways."""
    logging.disable()
    # Without reader threads, all of a batch is made in this one.
    overrides = ["train_steps=4", "checkpoint.interval_steps=2", "data.num_threads=0"]
    config = load_config("quickstart", [*overrides, "model.dropout=0.1"])
    batch, keys, state = Way(), Way("rng.py"), Way()
    with tempfile.TemporaryDirectory() as folder:
        run = pathlib.Path(folder, "run")
        with keys:
            loop.train(config, run, StopSignals(), verbose=False)
        keys.show("random keys, where they are drawn")
        CheckpointFolder(run / "checkpoints", config.checkpoint).set_aside(4)
        (run / "result.json").unlink()
        batch.through(TrainingFeed, "__init__")
        batch.through(TrainingFeed, "__next__")
        state.through(session, "restore_or_init")
        state.through(Saves, "save")
        loop.train(config, run, StopSignals(), verbose=False)
    batch.show("a batch, from the source to the devices")
    state.show("the state, from a checkpoint to the next")


if __name__ == "__main__":
    main()
