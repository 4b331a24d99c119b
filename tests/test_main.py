import errno
import logging
import os

import pytest
from processes import UNMIXED, run_command, user_error

from vit_jax.__main__ import _StderrHandler, main, quiet_libtpu
from vit_jax.commands import COMMANDS, analyze
from vit_jax.commands import train as train_command
from vit_jax.run.job_folder import error_file, read_data_error


@pytest.fixture
def train(tmp_path, digits_dir):
    """The arguments of a small run."""
    data = f"--config.data.data_dir={digits_dir}"
    return ["train", f"--config={UNMIXED}", f"--workdir={tmp_path / 'run'}", data]


@pytest.mark.parametrize("arguments", [[], ["--help"]])
def test_help_lists_every_command_and_exits_with_0(capsys, arguments):
    assert main(arguments) == 0
    out = capsys.readouterr().out
    assert [name for name in COMMANDS if f"{name} " not in out] == []


@pytest.mark.parametrize("command", list(COMMANDS))
def test_help_of_a_command_shows_how_to_call_it(capsys, command):
    with pytest.raises(SystemExit) as caught:
        main([command, "--help"])
    assert caught.value.code == 0
    assert f"usage: python -m vit_jax {command} [-h]" in capsys.readouterr().out


def test_commands_compute_with_32_bits_whatever_the_environment_says(monkeypatch):
    monkeypatch.setenv("JAX_ENABLE_X64", "1")  # JAX reads it when it is imported, which is later.
    assert main(["--help"]) == 0
    assert "JAX_ENABLE_X64" not in os.environ


@pytest.mark.parametrize(("vendor", "type_"), [("0x8086", "v5litepod-1"), ("0x1ae0", None)])
def test_libtpu_is_quiet_on_a_machine_without_a_tpu(tmp_path, monkeypatch, vendor, type_):
    for name in ("TPU_ACCELERATOR_TYPE", "TPU_WORKER_HOSTNAMES"):
        monkeypatch.setenv(name, "")  # Restored after the test.
        monkeypatch.delenv(name)
    (tmp_path / "0000:00:05.0").mkdir()
    (tmp_path / "0000:00:05.0" / "vendor").write_text(f"{vendor}\n")
    quiet_libtpu(tmp_path)
    assert os.environ.get("TPU_ACCELERATOR_TYPE") == type_


def test_an_unknown_command_is_named_with_the_nearest(capsys):
    known = ", ".join(COMMANDS)
    expected = f"error: unknown command 'evaluate'; expected one of {known}; did you mean 'eval'?"
    assert user_error(capsys, ["evaluate"]) == expected


def test_there_is_one_recipe(capsys, train):
    other = "--config=configs/cifar10.py"
    expected = f"error: two values: {train[1]} and {other}; expected one; leave one of them out"
    assert user_error(capsys, [*train, other]) == expected


PREDICT = ["predict", "a.jpg", "--model=b"]


@pytest.mark.parametrize(
    ("command", "extra", "fix"),
    [
        ("train", "positional", "see python -m vit_jax train --help"),
        ("train", "-x", "see python -m vit_jax train --help"),
        ("train", "--conf=x", "did you mean --config=x?"),
        ("train", "--work=x", "did you mean --workdir=x?"),
        ("train", "--work-dir=x", "did you mean --workdir=x?"),
        ("train", "--trian_steps=3", "did you mean --config.train_steps=3?"),
        ("train", "--lr=3", "did you mean --config.optimizer.learning_rate=3?"),
        ("train", "--confg.seed=1", "did you mean --config.seed=1?"),
        ("train", "seed=3", "did you mean --config.seed=3?"),
        ("predict", "--img_size=3", "did you mean --image_size=3?"),
        ("predict", "--heads=3", "did you mean --model.num_heads=3?"),
    ],
)
def test_an_unknown_argument_is_named_with_what_is_meant(capsys, train, command, extra, fix):
    line = user_error(capsys, [*(train if command == "train" else PREDICT), extra])
    assert line.startswith(f"error: unknown argument '{extra}'; expected ")
    assert line.endswith(fix)


def test_a_missing_argument_is_named(capsys):
    assert user_error(capsys, ["train", "--workdir=x"]).startswith(
        "error: the following arguments are required: --config; "
    )


@pytest.mark.parametrize(
    ("arguments", "recipe"),
    [
        (["train", "configs/x.py"], "configs/x.py"),
        (["train", "--workdir", "runs/x", "augreg.py:B/16"], "augreg.py:B/16"),
        (["plan", "quickstart", "--topology=v5e:2x2"], "quickstart"),
        (["train", "quickstart", "--config=quickstart"], "quickstart"),
    ],
)
def test_a_recipe_without_its_flag_is_understood(capsys, arguments, recipe):
    line = user_error(capsys, arguments)
    assert line.startswith(f"error: unknown argument '{recipe}'; expected the arguments of ")
    assert line.endswith(f"; did you mean --config={recipe}?")


def test_a_sweep_without_its_flag_is_understood(capsys):
    line = user_error(capsys, ["sweep", "sweep.py:small", "--workdir=x"])
    assert line.endswith("; did you mean --sweep=sweep.py:small?")


@pytest.mark.parametrize(
    ("extra", "part"),
    [
        ("--config.sede=1", "unknown config key 'sede'; expected one of "),
        ("--config.model.patch_size=8", "the patch size is a part of the model's name: ViT-B/8"),
        ("--config.seed", "override '--config.seed'; expected --config.KEY=VALUE"),
        ("--config.seed=one", "'seed' is 'one' (str); expected a whole number"),
        ("--config.data.data_dir=/dev/null/x", "cannot write digits to /dev/null/x: Not a dir"),
        ("--config.data.train_split=tran", "split 'tran' of digits/1.0.0: "),
        ("--config.model.name=VitB16", "unknown model 'VitB16'; expected ViT-"),
        ("--config.data.image_size=9", "image size 9x9 with patch size 4; expected "),
        ("--config.accumulation_steps=5", "a divisor of data.global_batch_size = 32"),
        ("--config.mesh.fsdp=64", "mesh data=-1, fsdp=64, tensor=1 on "),
        ("--config.init_from=/nowhere/at/all", "/nowhere/at/all does not exist"),
    ],
)
def test_a_wrong_config_is_a_one_line_error(capsys, train, extra, part):
    assert part in user_error(capsys, [*train, extra])


def test_a_run_notes_an_error_of_its_data_for_its_job(tmp_path, train, monkeypatch):
    """All commands end with code 2; the run's own data are to blame for the first two."""
    monkeypatch.setenv("VIT_JAX_ERROR_FILE", str(error_file(tmp_path)))
    noted = []
    for extra in (
        "--config.data.train_split=tran",
        "--config.data.global_batch_size=0",
        "--config.seed=one",
        "--config.fewshot.datasets.numbers.name=nothing",
    ):
        assert main([*train, extra]) == 2
        noted.append(read_data_error(tmp_path))
        error_file(tmp_path).unlink(missing_ok=True)
    assert "split 'tran'" in noted[0]
    assert "'data.global_batch_size' is 0" in noted[1]
    assert noted[2:] == [None, None]


def test_evaluating_a_folder_without_a_run_is_a_one_line_error(capsys, tmp_path):
    line = user_error(capsys, ["eval", f"--workdir={tmp_path}"])
    assert line.startswith(f"error: no run in {tmp_path}; ")


def test_debug_shows_the_traceback_before_the_line(capsys, tmp_path):
    assert main(["train", "--config=gone.py", f"--workdir={tmp_path}", "--debug"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert any("in load_config" in line for line in lines)
    assert lines[-1].startswith("error: no config file at gone.py; ")


def raising(error):
    def run(args, overrides):
        raise error

    return run


@pytest.mark.parametrize(
    ("number", "fix"),
    [
        (errno.ENOSPC, "free some space"),
        (errno.EROFS, "change its permissions"),
        (errno.ENAMETOOLONG, "correct the path"),
    ],
)
def test_a_full_or_unwritable_disk_is_a_one_line_error_everywhere(
    capsys, monkeypatch, train, number, fix
):
    monkeypatch.setattr(train_command, "run", raising(OSError(number, os.strerror(number), "/x")))
    line = user_error(capsys, train)
    assert line.startswith(f"error: /x: {os.strerror(number)}; expected a ")
    assert line.endswith(f"; {fix}, or choose another path")


@pytest.mark.parametrize("error", [KeyError("x"), ValueError("y"), OSError(errno.EIO, "io")])
def test_a_bug_is_not_reported_as_a_user_error(monkeypatch, train, error):
    monkeypatch.setattr(train_command, "run", raising(error))
    with pytest.raises(type(error)):
        main(train)


def test_the_code_of_the_command_is_returned_and_overrides_reach_it(monkeypatch, train):
    seen = []

    def run(args, overrides):
        seen.extend([args.workdir.name, *overrides])
        return 75

    monkeypatch.setattr(train_command, "run", run)
    assert main([*train[:3], "--config.seed=3", "--config.data.name=a = b"]) == 75
    assert seen == ["run", "seed=3", "data.name=a = b"]


def test_an_override_ends_a_list_of_values(monkeypatch):
    seen = []
    monkeypatch.setattr(analyze, "run", lambda args, overrides: seen.extend([args, *overrides]))
    main(["analyze", "--images", "a.jpg", "--model.pooling=gap", "CHECKPOINT"])
    assert (seen[0].model, seen[1:]) == ("CHECKPOINT", ["pooling=gap"])


def test_as_a_program_a_user_error_is_exit_code_2_and_one_line(tmp_path, digits_dir, train):
    done = run_command("-m", "vit_jax", *train, "--config.data.name=digit", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"error: no dataset 'digit' in {digits_dir}; expected ")
    assert not (tmp_path / "run").exists()


def test_a_command_that_ctrl_c_ends_prints_one_word_and_exits_with_130(monkeypatch, capsys):
    monkeypatch.setattr("vit_jax.commands.models.run", raising(KeyboardInterrupt))
    assert main(["models"]) == 130
    assert capsys.readouterr().err == "interrupted\n"


@pytest.mark.parametrize(
    "error",
    [
        MemoryError("Unable to allocate 7 TiB"),
        RuntimeError("RESOURCE_EXHAUSTED: 12 GiB on the device"),
    ],
)
def test_memory_that_runs_out_is_a_one_line_error(monkeypatch, capsys, error):
    monkeypatch.setattr("vit_jax.commands.models.run", raising(error))
    assert user_error(capsys, ["models"]).startswith(f"error: out of memory: {error}; expected")


@pytest.mark.parametrize("where", ["", "def get_config():\n    "])
def test_a_config_file_that_exits_is_an_error(capsys, tmp_path, where):
    """`sys.exit(0)` there ended the command with success, and nothing was done."""
    path = tmp_path / "exits.py"
    path.write_text(f"import sys\n{where}sys.exit(0)\n")
    line = user_error(capsys, ["train", f"--config={path}", f"--workdir={tmp_path / 'run'}"])
    assert line.startswith(f"error: {path} ends the program: SystemExit(0)")
    assert not (tmp_path / "run").exists()


def test_what_is_said_again_of_data_is_written_once_and_other_lines_each_time():
    handler, shown = _StderrHandler(), []
    for name in ("vit_jax.data.sources.listing", "vit_jax.train.step_log"):
        for text in ("left out: 3", "left out: 4", "left out: 3"):
            record = logging.LogRecord(name, logging.INFO, "", 0, text, (), None)
            shown += [text] * bool(handler.filter(record))
    assert shown == ["left out: 3", "left out: 4", "left out: 3", "left out: 4", "left out: 3"]
