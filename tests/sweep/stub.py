"""A sweep of two jobs, `tiny` and `pretrain`, and a stand-in for the trainer: `stub.py FOLDER`.

FOLDER may be in a bucket.

Files in the folder $STUB control a job NAME: NAME.fail makes it fail, NAME.hold keeps it at step 3
until the file is removed. The job appends a line to NAME.calls each time it runs.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

from vit_jax.storage.files import write_json
from vit_jax.storage.log_file import LogFile
from vit_jax.storage.paths import user_path

TINY = str(Path(__file__).parents[1] / "e2e" / "tiny.py")


def get_sweep():
    from vit_jax.sweep import Job

    return [Job(TINY), Job(TINY, name="pretrain")]


def stop(saved, step):
    saved.write_text(json.dumps({"step": step}))
    print(f"stopped and saved at step {step}", flush=True)
    os._exit(75)


def run_job(folder):
    mark = Path(os.environ["STUB"]) / folder.name
    with Path(f"{mark}.calls").open("a", encoding="utf-8") as calls:
        calls.write(f"{os.environ.get('CUDA_VISIBLE_DEVICES')} {len(os.sched_getaffinity(0))}\n")
    saved = folder / "saved.json"
    step = json.loads(saved.read_text())["step"] if saved.exists() else 0
    signal.signal(signal.SIGTERM, lambda *_: stop(saved, step))
    print(f"begins at step {step}", flush=True)
    if Path(f"{mark}.fail").exists():
        sys.exit("\n".join(f"reason {n}" for n in range(40)))
    metrics = LogFile(folder / "metrics.jsonl")
    while step < 5:
        step += 1
        metrics.write({"step": step})
        metrics.flush()
        while step == 3 and Path(f"{mark}.hold").exists():
            time.sleep(0.02)
    metrics.close()
    write_json(folder / "result.json", {"step": step, "wall_time_s": 1.0})


if __name__ == "__main__":
    run_job(user_path(sys.argv[1]))
