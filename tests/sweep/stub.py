"""A sweep of two jobs, `tiny` and `pretrain`, and a stand-in for the trainer: `stub.py FOLDER`.

Files in the folder $STUB control a job NAME: NAME.fail makes it fail, NAME.hold keeps it at step 3
until the file is removed. The job appends a line to NAME.calls each time it runs.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

TINY = str(Path(__file__).parents[1] / "e2e" / "tiny.py")


def get_sweep():
    from vit_jax.sweep import Job

    return [Job(TINY), Job(TINY, name="pretrain")]


def stop(step):
    Path("saved.json").write_text(json.dumps({"step": step}))
    print(f"stopped and saved at step {step}", flush=True)
    os._exit(75)


def run_job(folder):
    mark = Path(os.environ["STUB"]) / folder.name
    with Path(f"{mark}.calls").open("a") as calls:
        calls.write(f"{os.environ.get('CUDA_VISIBLE_DEVICES')} {len(os.sched_getaffinity(0))}\n")
    os.chdir(folder)
    step = json.loads(Path("saved.json").read_text())["step"] if Path("saved.json").exists() else 0
    signal.signal(signal.SIGTERM, lambda *_: stop(step))
    print(f"begins at step {step}", flush=True)
    if Path(f"{mark}.fail").exists():
        sys.exit("\n".join(f"reason {n}" for n in range(40)))
    with Path("metrics.jsonl").open("a") as metrics:
        while step < 5:
            step += 1
            metrics.write(json.dumps({"step": step}) + "\n")
            metrics.flush()
            while step == 3 and Path(f"{mark}.hold").exists():
                time.sleep(0.02)
    Path("result.json.tmp").write_text(json.dumps({"step": step, "wall_time_s": 1.0}))
    Path("result.json.tmp").replace("result.json")


if __name__ == "__main__":
    run_job(Path(sys.argv[1]))
