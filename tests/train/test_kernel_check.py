"""The comparison of the attention kernel with the formula before a run, with wrong kernels.

The devices of these programs count as TPUs, so that `auto` takes the kernel; it is interpreted.
"""

import json
import logging

import jax
import numpy as np
import pytest
from many_processes import free_port
from processes import ROOT, finish, start_command
from task_runs import run_mapping

from vit_jax.config.run import Config
from vit_jax.errors import RunFolderError
from vit_jax.models import pallas_attention
from vit_jax.models.pallas_attention import Call, Split
from vit_jax.parallel.mesh import make_mesh
from vit_jax.train import inputs, kernel_check, program
from vit_jax.train.inputs import open_inputs
from vit_jax.train.kernel_check import FILE, check_kernel, compare, with_stored_kernel
from vit_jax.train.loop import train
from vit_jax.train.program import build_program
from vit_jax.train.signals import StopSignals

# 8 images of 4 patches and a class token, 2 heads of 8 features.
MODEL = {
    "name": "ViT-Ti/4", "width": 16, "depth": 2, "mlp_dim": 32, "num_heads": 2, "dtype": "bfloat16",
}  # fmt: skip
attend_qkv = pallas_attention.attend_qkv


def config_of(data_dir=None, train_steps=2, **changes):
    mapping = run_mapping(train_steps, size=8)
    if changes.get("task", {}).get("name") == "dino":
        mapping["data"]["augment"] = {"flip": True}
    mapping["data"] |= {"data_dir": None if data_dir is None else str(data_dir)}
    mapping["data"] |= {"global_batch_size": 8} | changes.pop("data", {})
    return Config.from_mapping(mapping | {"model": MODEL | changes.pop("model", {})} | changes)


@pytest.fixture(autouse=True)
def on_a_tpu(monkeypatch):
    monkeypatch.setattr(program, "platform_of", lambda mesh: "tpu")
    # Other tests share programs for CPUs.
    monkeypatch.setattr(inputs, "build_program", build_program)


def built(**changes):
    config = config_of(**changes)
    return build_program(config, make_mesh(config.mesh), num_classes=10, num_examples=80)


def scaled(*args, **options):
    return attend_qkv(*args, **options) * 1.1


def without_gradient(*args, **options):
    return jax.lax.stop_gradient(attend_qkv(*args, **options))


def with_a_nan(*args, **options):
    return attend_qkv(*args, **options).at[0, 0, 0, 0].set(np.nan)


def with_a_wrong_row(*args, **options):
    """The last token of one head of one image is that of another one."""
    out = attend_qkv(*args, **options)
    return out.at[0, -1, 1].set(out[0, -1, 0])


def use(monkeypatch, kernel):
    monkeypatch.setattr(pallas_attention, "attend_qkv", kernel)


def never_compare(monkeypatch):
    monkeypatch.setattr(kernel_check, "compare", lambda call: pytest.fail("compared"))


def warnings_of(caplog):
    return [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]


def call(tokens=5, *, heads=2, head_dim=8, valid=None, dtype="bfloat16", has_bias=False):
    """A call with as many images in a step of the grid as fit."""
    itemsize = np.dtype(dtype).itemsize
    split = pallas_attention._split(
        64, tokens, valid or tokens, heads, head_dim, itemsize,
        has_qkv_bias=not has_bias, has_bias=has_bias,
    )  # fmt: skip
    assert split is not None
    return Call(split, dtype)


def test_a_right_kernel_is_used_and_the_folder_says_what_was_compared(tmp_path, caplog):
    found = check_kernel(built(), tmp_path)
    assert (found["kernel"], found["problem"]) == ("pallas", None)
    (row,) = found["compared"]
    differences = row.pop("differences")
    assert row == {
        "images": 8, "tokens": 5, "valid_tokens": 5, "heads": 2, "head_dim": 8,
        "dtype": "bfloat16", "qkv_bias": True, "position_bias": False, "problem": None,
    }  # fmt: skip
    assert set(differences) == {"output", "gradient of qkv", "gradient of qkv_bias"}
    assert all(1e-4 < of_all < of_one < 0.05 for of_all, of_one in differences.values())
    assert not warnings_of(caplog)


@pytest.mark.parametrize(
    ("kernel", "where"),
    [
        (scaled, "in output of 5 tokens and 2 heads of 8 features; expected at most 2.0%"),
        (without_gradient, "in gradient of qkv"),
        (with_a_nan, "by nan%"),
        (with_a_wrong_row, "in output of 5 tokens and 2 heads of 8 features"),
    ],
)
def test_a_wrong_kernel_is_one_warning_and_is_not_used(
    kernel, where, tmp_path, monkeypatch, caplog
):
    use(monkeypatch, kernel)
    found = check_kernel(built(), tmp_path)
    assert found["kernel"] == "xla"
    json.dumps(found, allow_nan=False)
    (warning,) = warnings_of(caplog)
    assert "the Pallas kernel differs from the formula" in warning
    assert "this run uses XLA's attention instead" in warning
    assert where in warning


def test_a_kernel_that_fails_on_the_device_is_not_used(tmp_path, monkeypatch, caplog):
    def fail(call):
        raise jax.errors.JaxRuntimeError("INTERNAL: core halted\nand more")

    monkeypatch.setattr(kernel_check, "compare", fail)
    assert check_kernel(built(), tmp_path)["kernel"] == "xla"
    (warning,) = warnings_of(caplog)
    assert "the Pallas kernel failed: INTERNAL: core halted; this run" in warning


@pytest.mark.parametrize(
    "one",
    [
        call(197, heads=4, head_dim=64),
        call(65, heads=3, head_dim=64, valid=60),
        call(50, heads=12, head_dim=64, dtype="float32"),
        call(33, heads=4, head_dim=64, has_bias=True),
        call(650, heads=1, head_dim=16),
    ],
)
def test_the_rounding_of_bfloat16_is_less_than_half_of_the_limits(one):
    for of_all, of_one in compare(one).values():
        assert of_all < kernel_check._ALL_ROWS / 2
        assert of_one < kernel_check._ONE_ROW / 2


def test_one_key_too_few_of_197_is_beyond_the_limits(monkeypatch):
    monkeypatch.setattr(
        pallas_attention,
        "attend_qkv",
        lambda *args, **options: attend_qkv(*args, **options | {"num_valid": 196}),
    )
    of_all, _ = compare(call(197, heads=4, head_dim=64))["output"]
    assert of_all == pytest.approx(197**-0.5, rel=0.25)
    assert of_all > 2 * kernel_check._ALL_ROWS


def test_the_comparison_takes_two_steps_of_the_grid_that_the_run_has():
    def split(images):
        return Split(197, 197, 12, 64, images, 2, True, True, False)

    assert Call(split(2), "bfloat16").small_batch == 4
    # Two images fit into one step: a batch of two would be computed in one.
    assert Call(split(1), "bfloat16").small_batch == 1


@pytest.mark.parametrize(
    ("changes", "tokens"),
    [
        ({"flexible": {"patch_sizes": [2, 8]},
          "model": {"patch_kernel_size": 8, "position_grid": 4}}, {2, 5, 17}),
        # One visible patch for the encoder; its decoder has them all.
        ({"task": {"name": "mae", "mask_ratio": 0.75, "decoder_width": 16, "decoder_heads": 2,
                                 "decoder_depth": 1}}, {2, 5}),
        ({"task": {"name": "dino", "local_crops": 1, "local_size": 4, "prototypes": 8,
                                   "head_width": 8, "bottleneck": 4}, "evaluation": {}}, {2, 5}),
        # Sequences of patches have a number of tokens for each image, which XLA's attention takes.
        ({"data": {"sequence_length": 4}, "model": {"position_grid": 2}}, set()),
        ({"model": {"position_embedding": "relative"}}, {5}),
    ],
    ids=["flexible", "mae", "dino", "naflex", "relative"],
)  # fmt: skip
def test_all_sizes_that_a_step_attends_to_are_compared(changes, tokens):
    one = built(**changes)
    # Traced again, although it was traced before.
    for _ in range(2):
        calls = kernel_check._calls(one)
        assert {c.split.tokens for c in calls} == tokens
    relative = one.config.model.position_embedding == "relative"
    assert {c.split.has_bias for c in calls} == ({relative} if tokens else set())


def test_a_text_tower_has_no_kernel():
    towers = {
        "name": "SigLIP-ViT-Pico/4", "dtype": "bfloat16", "embedding_size": 8,
        "text": {"vocabulary_size": 32, "context_length": 6},
    }  # fmt: skip
    model = Config.from_mapping(run_mapping(1) | {"model": towers}).model
    image = model.image.replace(attention_implementation="xla")
    assert model.with_xla_attention() == model.replace(image=image)
    assert not hasattr(model.text, "attention_implementation")


def test_nothing_is_compared_without_a_tpu_or_for_a_kernel_that_was_requested(
    tmp_path, monkeypatch
):
    never_compare(monkeypatch)
    assert check_kernel(built(model={"attention_implementation": "pallas"}), tmp_path) is None
    assert check_kernel(built(model={"attention_implementation": "xla"}), tmp_path) is None
    monkeypatch.setattr(program, "platform_of", lambda mesh: "cpu")
    (tmp_path / FILE).write_text("not JSON")
    assert check_kernel(built(), tmp_path) is None


@pytest.fixture
def built_configs(monkeypatch):
    """The models for which loop and microbatches are chosen, in turn."""
    found, choose = [], program.choose_step

    def noting(config, *args):
        found.append(config.model.attention_implementation)
        return choose(config, *args)

    monkeypatch.setattr(program, "choose_step", noting)
    return found


def test_a_run_with_a_wrong_kernel_trains_with_xlas_attention_and_keeps_the_choice(
    digits_dir, tmp_path, monkeypatch, caplog, built_configs
):
    folder, config = tmp_path / "run", config_of(digits_dir)
    use(monkeypatch, scaled)
    with pytest.MonkeyPatch.context() as patch:
        opened = []
        patch.setattr(
            inputs, "Evaluators", lambda *a: opened.append(a[1]) or original_evaluators(*a)
        )
        result = train(config, folder, StopSignals(), verbose=False)
    assert result["step"] == 2
    assert built_configs == ["auto", "xla"]
    (evaluated,) = opened
    assert evaluated.config.model.attention_implementation == "xla"
    assert not kernel_check._calls(evaluated)
    assert len([w for w in warnings_of(caplog) if "Pallas" in w]) == 1
    stored = json.loads((folder / FILE).read_text())
    assert stored["kernel"] == "xla"
    saved = json.loads((folder / "config.json").read_text())
    assert saved["model"]["attention_implementation"] == "auto"

    # Another session takes the choice of the folder, even if the kernel were right now.
    use(monkeypatch, attend_qkv)
    never_compare(monkeypatch)
    again = open_inputs(config, folder)
    assert again.program.config.model.attention_implementation == "xla"
    assert again.config.model.attention_implementation == "auto"
    assert again.attention == stored
    evaluated = with_stored_kernel(config, folder, "tpu")
    assert evaluated == config.replace(model=config.model.with_xla_attention())

    # The file is for TPUs only.
    assert with_stored_kernel(config, folder, "gpu") == config
    monkeypatch.setattr(program, "platform_of", lambda mesh: "cpu")
    elsewhere = open_inputs(config, folder)
    assert elsewhere.program.config.model.attention_implementation == "auto"
    assert elsewhere.attention is None


original_evaluators = inputs.Evaluators


def test_a_right_kernel_is_not_compared_again_until_config_or_device_change(
    digits_dir, tmp_path, monkeypatch, built_configs
):
    config = config_of(digits_dir)
    first = open_inputs(config, tmp_path)
    assert {c.split.tokens for c in kernel_check._calls(first.program)} == {5}
    (tmp_path / FILE).write_text(json.dumps(first.attention))
    compared = []
    monkeypatch.setattr(kernel_check, "compare", lambda call: compared.append(call) or {})
    assert open_inputs(config, tmp_path).attention == first.attention
    assert built_configs == ["auto", "auto"]
    assert not compared
    open_inputs(config_of(digits_dir, model={"num_heads": 4}), tmp_path)
    assert [c.split.heads for c in compared] == [4]
    other = {**first.attention, "device_kind": "TPU v9"}
    (tmp_path / FILE).write_text(json.dumps(other))
    assert open_inputs(config, tmp_path).attention["device_kind"] == "cpu"
    assert len(compared) == 2


def test_a_difference_on_one_host_decides_for_all(tmp_path, monkeypatch, caplog):
    """This process is not the first one and has a right kernel."""
    monkeypatch.setattr(
        kernel_check, "gather", lambda name, mine: [mine, mine, ["differs there", None]]
    )
    monkeypatch.setattr(kernel_check, "is_first_host", lambda: False)
    found = check_kernel(built(), tmp_path)
    assert (found["kernel"], found["problem"]) == ("xla", "differs there")
    assert found["compared"][0]["problem"] is None
    assert not warnings_of(caplog)


def test_all_hosts_take_the_file_that_the_first_one_reads(tmp_path, monkeypatch):
    never_compare(monkeypatch)
    stored = {"kernel": "xla"}
    monkeypatch.setattr(kernel_check, "on_first_host", lambda name, action: stored)
    assert check_kernel(built(), tmp_path) == stored


# Of two processes that count as hosts of TPUs, the second one has a wrong kernel.
HOSTS = """
import json, sys
from pathlib import Path

from vit_jax.models import pallas_attention
from vit_jax.parallel import processes
from vit_jax.parallel.launch import Launch
from vit_jax.train import program

port, process, folder = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
launch = Launch("flags", f"127.0.0.1:{port}", 2, process)
times = {"start_timeout_s": 60, "peer_timeout_s": 30}
with processes.connected(launch, config={}, code={}, **times):
    from test_kernel_check import built, scaled
    from vit_jax.train.kernel_check import FILE, check_kernel

    program.platform_of = lambda mesh: "tpu"
    one = built(mesh={"data": 1, "fsdp": 1, "tensor": 2})
    if process == 1:
        pallas_attention.attend_qkv = scaled
    first = check_kernel(one, folder)
    if process == 0:
        (folder / FILE).write_text(json.dumps(first))
    processes.barrier("written")
    second = check_kernel(one, folder)
    problems = [row["problem"] is not None for row in first["compared"]]
    heads = [row["heads"] for row in first["compared"]]
    print(json.dumps([first["kernel"], first["problem"], second["kernel"], problems, heads]))
"""


@pytest.mark.slow
def test_two_hosts_with_two_devices_take_the_same_kernel(tmp_path):
    (tmp_path / "hosts.py").write_text(HOSTS)
    port, path = free_port(), f"{ROOT}:{ROOT / 'tests'}:{ROOT / 'tests' / 'train'}"
    env = {"TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONPATH": path}
    hosts = [
        start_command(tmp_path / "hosts.py", port, number, tmp_path, env=env) for number in (0, 1)
    ]
    printed = [finish(host) for host in hosts]
    assert [code for code, _, _ in printed] == [0, 0], printed
    first, second = (json.loads(out.splitlines()[-1]) for _, out, _ in printed)
    # Each device has one of the two heads; the rest of a row is about the process's own kernel.
    assert first[:3] == second[:3] == ["xla", first[1], "xla"]
    assert "differs from the formula" in first[1]
    assert first[3:] == [[False, False], [1, 2]]
    assert all(second[3])
    warnings = [err.count("this run uses XLA's attention instead") for _, _, err in printed]
    assert warnings == [1, 0]


@pytest.mark.parametrize("content", ["{", "[]", '{"kernel": "flash"}', "{}"])
def test_a_damaged_file_says_what_to_do(content, tmp_path):
    (tmp_path / FILE).write_text(content)
    with pytest.raises(RunFolderError, match=r"attention\.json.*remove it"):
        check_kernel(built(), tmp_path)
