"""A made-up sweep of 8 runs, and one ended with SIGTERM whose texts try to run scripts."""

import random

from report.fake_runs import ENVIRONMENT, config, curve, result, write

from vit_jax.__main__ import main
from vit_jax.report import content

EVIL = "<script>window.hacked = 1</script>"
LOG = "step 20/400\n</script><img src=x onerror='window.hacked = 2'>\n<b>last line</b>\n"


def write_runs(folder):
    """Writes the runs below folder/jobs."""
    state = random.Random(0)
    for model in ("ViT-Mini/4", "BiT-R-Mini"):
        for fraction in (0.1, 1.0):
            for seed in (0, 1):
                name = f"{model.replace('/', '-')}-{fraction}-{seed}"
                score = 0.5 + 0.3 * fraction + 0.05 * seed + 0.1 * ("ViT" in model)
                rows = curve(score, 400, "test", state)
                write(
                    folder / "jobs" / name,
                    job={"name": name, "labels": {"model": model, "fraction": fraction}},
                    config=config(model, seed=seed, data__subset__fraction=fraction),
                    env=ENVIRONMENT,
                    metrics=rows,
                    result=result(score, 400, examples=int(50_000 * fraction)),
                )
    failed = folder / "jobs" / "evil"
    write(
        failed,
        job={"name": EVIL, "labels": {"model": EVIL, "fraction": 0.1}},
        config=config(EVIL, data__subset__fraction=0.1),
        env=ENVIRONMENT,
        metrics=curve(0.4, 400, "test", state, until=80),
    )
    attempt = {"number": 1, "host": "vm", "pid": 1, "started": 1.0, "ended": 2.0, "exit_code": -15}
    write(failed / ".sweep", attempt=attempt)
    (failed / "log.txt").write_text(LOG)
    return folder


def without_pictures(monkeypatch):
    """Leaves out the drawing, which takes most of the time of a report."""
    monkeypatch.setattr(content, "draw", lambda *_: None)
    monkeypatch.setattr(content, "save", lambda *_: "<svg/>")


def make_page(folder, monkeypatch):
    """Makes the report without pictures, and returns its folder."""
    without_pictures(monkeypatch)
    assert main(["report", str(folder)]) == 0
    return folder / "report"
