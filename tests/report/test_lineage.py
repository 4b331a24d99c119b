import json

import pytest
from report.fake_runs import config, result, write

from vit_jax.report.lineage import efforts, own_effort
from vit_jax.report.runs import find_runs, read_run

# Tiny ViT, 8 px, patch 4: 4 patches of 48 values, 5 tokens, width 8, one block, 10 classes.
# Patches 4 * 48 * 8; attention 5 * 8 * 8 * 4 and 2 * 5 * 5 * 8; MLP 2 * 5 * 8 * 16; head 8 * 10.
MACS = 4 * 48 * 8 + 5 * 8 * 8 * 4 + 2 * 5 * 5 * 8 + 2 * 5 * 8 * 16 + 8 * 10


def tiny(**more):
    made = config(**more)
    made["model"] |= {"name": "ViT-Ti/4", "width": 8, "depth": 1, "mlp_dim": 16, "num_heads": 2}
    made["data"] |= {"image_size": 8}
    return made


def effort_of(folder, *others):
    found = find_runs([folder, *others])
    return efforts(found.runs)[folder]


def test_a_run_that_starts_from_nothing_is_its_own_pretraining(tmp_path):
    write(tmp_path / "a", config=config(), result=result(0.5, 400, examples=700, exaflops=0.25))
    effort = effort_of(tmp_path / "a")
    assert (effort.pretrain_examples, effort.pretrain_exaflops, effort.note) == (700, 0.25, "")
    assert effort.examples_seen == 400 * 64


@pytest.mark.parametrize("origin", ["pre", "pre/checkpoints/400"])
def test_examples_and_compute_come_from_the_run_that_it_starts_from(tmp_path, origin):
    write(tmp_path / "pre", config=config(), result=result(0.5, 400, examples=900, exaflops=2.0))
    (tmp_path / "pre/checkpoints/400").mkdir(parents=True)
    middle = config(init_from=str(tmp_path / origin))
    write(tmp_path / "middle", config=middle, result=result(0.5, 1, examples=50, exaflops=0.5))
    last = {"command": "fewshot", "checkpoint": "middle"}
    write(tmp_path / "last", config=last, result={"step": 0, "knn/x/accuracy_top1": 0.5})
    effort = effort_of(tmp_path / "middle")  # Which the search does not find: it is looked up.
    assert (effort.pretrain_examples, effort.pretrain_exaflops) == (900, 2.0)
    assert (effort.train_examples, effort.train_exaflops) == (50, 0.5)
    effort = effort_of(tmp_path / "last")
    assert (effort.pretrain_examples, effort.pretrain_exaflops) == (900, 2.5)
    assert effort.train_examples is None


@pytest.mark.parametrize(("origin", "word"), [("/no/such/run", "gone"), ("hf://a/b", "not a run")])
def test_what_is_not_known_is_said(tmp_path, origin, word):
    write(tmp_path / "a", config=config(init_from=origin), result=result(0.5, 400))
    effort = effort_of(tmp_path / "a")
    assert effort.pretrain_examples is None
    assert effort.pretrain_exaflops is None
    assert word in effort.note
    assert origin in effort.note


def test_a_sweep_that_has_moved_finds_its_own_jobs(tmp_path):
    job = {"sweep": "s.py", "name": "pre/vit", "labels": {}}
    write(tmp_path / "jobs/pre/vit", job=job, config=config(),
          result=result(0.5, 400, examples=900))  # fmt: skip
    moved = config(init_from="/before/s/jobs/pre/vit/checkpoints/400")
    write(tmp_path / "jobs/final", job={**job, "name": "final"}, config=moved,
          result=result(0.5, 400))  # fmt: skip
    runs = find_runs([tmp_path]).runs
    assert efforts(runs)[tmp_path / "jobs/final"].pretrain_examples == 900


def test_a_circle_is_told(tmp_path):
    for one, other in ("ab", "ba"):
        made = config(init_from=str(tmp_path / other))
        write(tmp_path / one, config=made, result=result(0.5, 400))
    assert "circle" in effort_of(tmp_path / "a", tmp_path / "b").note


def test_a_run_of_an_older_version_gets_what_follows_from_its_config(tmp_path):
    old = {"step": 30, "wall_time_s": 1.0, "eval/test/accuracy_top1": 0.5}
    write(tmp_path / "a", config=tiny(steps=30), result=old, subset={"examples": 77},
          classes={"names": list("abcdefghij")})  # fmt: skip
    examples, seen, exaflops = own_effort(read_run(tmp_path / "a"))
    assert (examples, seen) == (77, 30 * 64)
    assert exaflops == pytest.approx(6 * MACS * 30 * 64 / 1e18, rel=1e-12)
    (tmp_path / "a/classes.json").unlink()
    assert own_effort(read_run(tmp_path / "a"))[2] is None


def test_damaged_files_are_problems_and_no_errors(tmp_path):
    write(tmp_path, config=config(), result=result(0.5, 400))
    (tmp_path / "env.json").write_text("[1]")
    (tmp_path / "subset.json").write_text("{")
    problems = read_run(tmp_path).problems
    assert len(problems) == 2
    assert json.loads((tmp_path / "config.json").read_text())["seed"] == 0
