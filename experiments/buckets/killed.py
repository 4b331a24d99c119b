"""Kills a run on a bucket five times and compares it with an undisturbed run on a local disk.

    python -m experiments.buckets.killed FOLDER

Both runs have two processes. Data, weights and run folder of the first are in a bucket, which is
the only place that its processes share: the server of GCS's protocol that the tests use, on this
machine. Each kill is a kill -9 of both processes, a random time after a new checkpoint. The script
fails unless the last checkpoints, the losses and the examples of all steps are equal bit for bit.
It prints where the time of both runs went. FOLDER must be new.
"""

import argparse
import json
import os
import random
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from flax import nnx

from vit_jax import load_pretrained
from vit_jax.named_tree import named_leaves
from vit_jax.run.about import saved_steps
from vit_jax.storage.bucket_path import BucketPath
from vit_jax.storage.files import read_json
from vit_jax.storage.log_file import read_log

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))
from buckets.servers import Server  # noqa: E402

_RAW = argparse.RawDescriptionHelpFormatter
STEPS, INTERVAL = 240, 30
COMPARED = (
    "hash",
    "train/loss",
    "train/gradient_norm",
    "train/update_norm",
    "train/parameter_norm",
)
OVERRIDES = [
    f"--config.train_steps={STEPS}",
    "--config.data.source=folder",
    "--config.data.name=shapes",
    "--config.data.train_split=train",
    "--config.data.image_size=16",
    "--config.model.name=ViT-Ti/4",
    "--config.data.global_batch_size=32",
    "--config.evaluation.splits={'train': 'train'}",
    f"--config.evaluation.interval_steps={STEPS // 2}",
    f"--config.checkpoint.interval_steps={INTERVAL}",
    "--config.logging.interval_steps=1",
    "--config.logging.example_ids=hash",
    "--config.logging.curves=false",
    "--config.model.scan=true",
    "--config.mesh.data=1",
    "--config.mesh.fsdp=2",
]


def make_images(folder: Path) -> None:
    """Writes a folder of 480 noisy images of three classes."""
    from PIL import Image

    random_numbers = np.random.default_rng(0)
    for label, name in enumerate(("blue", "green", "red")):
        (folder / "train" / name).mkdir(parents=True)
        for index in range(160):
            pixels = random_numbers.integers(0, 128, (40, 40, 3), np.uint8)
            pixels[..., 2 - label] += 100
            Image.fromarray(pixels).save(folder / "train" / name / f"{index}.png")


def command(workdir: str, *arguments: str) -> list[str]:
    """Returns the command of a run."""
    return [
        sys.executable, "-m", "vit_jax", "train", "--config=configs/quickstart.py",
        f"--workdir={workdir}", *OVERRIDES, *arguments,
    ]  # fmt: skip


def start(place: str, log: Path) -> list[subprocess.Popen[bytes]]:
    """Starts the two processes of a run whose data, weights and folder are at one place."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    started = []
    for process in range(2):
        arguments = [
            f"--config.data.data_dir={place}/data", f"--config.init_from={place}/weights",
            f"--coordinator=127.0.0.1:{port}", "--num_processes=2", f"--process_id={process}",
        ]  # fmt: skip
        with log.with_suffix(f".{process}").open("ab") as file:
            started.append(
                subprocess.Popen(
                    command(f"{place}/run", *arguments), cwd=ROOT, stdout=file, stderr=file
                )
            )
    return started


def newest(workdir: Path) -> int:
    """Returns the step of the newest checkpoint; 0: there is none."""
    return max(saved_steps(workdir / "checkpoints"), default=0)


def kill_after_a_checkpoint(
    processes: list[subprocess.Popen[bytes]], workdir: Path, seconds: float
) -> int:
    """Kills a run some seconds after it has saved a new checkpoint; returns the step of that."""
    before = newest(workdir)
    while newest(workdir) == before:
        ended = [process.poll() for process in processes]
        if ended != [None, None]:
            raise SystemExit(f"a process ended by itself: exit codes {ended}")
        time.sleep(0.2)
    time.sleep(seconds)
    for process in processes:
        process.kill()
    for process in processes:
        process.wait()
    return newest(workdir)


def finish(processes: list[subprocess.Popen[bytes]], log: Path) -> None:
    """Waits for the end of a run."""
    codes = [process.wait() for process in processes]
    if codes != [0, 0]:
        raise SystemExit(f"exit codes {codes}:\n{log.with_suffix('.0').read_text()[-3000:]}")


def figures(workdir: Path) -> dict[tuple[int, str], Any]:
    """Returns what is in the logs of a run and does not depend on time, by step and name."""
    found = {}
    for name in ("metrics", "examples-0", "examples-1"):
        for row in read_log(workdir / f"{name}.jsonl"):
            for key, value in row.items():
                if key in COMPARED or key.startswith("eval/"):
                    found[row["step"], f"{name} {key}"] = value
    return found


def parameters(workdir: str) -> dict[str, np.ndarray]:
    """Returns name -> array of the final parameters of a run."""
    state = nnx.state(load_pretrained(workdir), nnx.Param)
    return {name: np.asarray(leaf) for name, leaf in named_leaves(state).items()}


def main() -> int:
    """Runs both and compares them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=_RAW)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0, help="of the times of the kills")
    args = parser.parse_args()
    here: Path = args.folder.absolute()
    here.mkdir(parents=True)
    os.environ["JAX_PLATFORMS"] = "cpu"
    make_images(here / "data")
    short = ["--config.seed=1", "--config.train_steps=20", "--config.evaluation.interval_steps=20"]
    data = f"--config.data.data_dir={here / 'data'}"
    one_device = ["--config.mesh.fsdp=1", data, *short]
    subprocess.run(command(f"{here / 'weights'}", *one_device), cwd=ROOT, check=True)
    finish(start(f"{here}", here / "undisturbed"), here / "undisturbed")
    with Server("gs") as server:
        os.environ.update(server.env)
        bucket = server.make_bucket("bucket")
        for name in ("data", "weights"):
            for path in filter(Path.is_file, sorted((here / name).rglob("*"))):
                BucketPath(f"{bucket}/{name}", path.relative_to(here / name)).upload(path)
        workdir, seconds = BucketPath(f"{bucket}/run"), random.Random(args.seed)
        for _ in range(args.kills):
            processes = start(bucket, here / "killed")
            step = kill_after_a_checkpoint(processes, workdir, seconds.uniform(0, 3))
            print(f"killed after the checkpoint of step {step}", flush=True)
        finish(start(bucket, here / "killed"), here / "killed")
        ours, theirs = figures(workdir), figures(here / "run")
        same_logs = ours == theirs
        left, right = parameters(f"{workdir}"), parameters(f"{here / 'run'}")
        same_parameters = left.keys() == right.keys() and all(
            np.array_equal(left[name], right[name]) for name in left
        )
        print(f"{len(ours)} logged figures equal: {same_logs}")
        print(f"{len(left)} arrays of parameters equal: {same_parameters}")
        for name, folder in (
            ("undisturbed, local disk", here / "run"),
            ("killed, bucket", workdir),
        ):
            account = read_json(folder / "result.json")["seconds"]
            print(name, json.dumps(account))
    return 0 if same_logs and same_parameters else 1


if __name__ == "__main__":
    sys.exit(main())
