"""JAX's attention kernels for TPUs, as the benchmark calls them, against the formula."""

import argparse
import functools
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import tpu as pltpu
from jax.experimental.pallas.ops.tpu import splash_attention

from vit_jax.__main__ import main
from vit_jax.bench.attention_kernels import CANDIDATES, IMPLEMENTATIONS, flash, splash
from vit_jax.bench.step import JaxStep, attention_steps
from vit_jax.commands.bench_step import _config
from vit_jax.errors import ModelError
from vit_jax.models.attention import AttentionChoice, attend
from vit_jax.models.stacking import LayerLoop
from vit_jax.train.step_choice import StepChoice

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
# Tokens, features of a head, real keys.
CASES = {"odd": (19, 64, None), "padding": (20, 72, 17), "two blocks": (650, 64, 641)}


@pytest.fixture(autouse=True)
def _jax_promotes():
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


@pytest.fixture
def interpreted(monkeypatch):
    """A function that runs another while the kernels that it calls are interpreted.

    Splash attention has an option for that, flash attention needs a mode of JAX.
    """

    def run(function, kernel, *args):
        if kernel is not splash:
            with pltpu.force_tpu_interpret_mode():
                return function(kernel, *args)
        make = functools.partial(splash_attention.make_splash_mha_single_device, interpret=True)
        monkeypatch.setattr(splash_attention, "make_splash_mha_single_device", make)
        return function(kernel, *args)

    return run


def random_inputs(tokens, head_dim, *, batch=2, heads=2, has_bias=False):
    rng = np.random.default_rng(tokens)
    shapes = [(batch, tokens, heads, head_dim)] * 3
    shapes += [(batch, heads, tokens, tokens)] * has_bias
    arrays = [jnp.asarray(rng.standard_normal(shape), jnp.float32) for shape in shapes]
    return arrays, rng.standard_normal(shapes[0]).astype(np.float32)


def output_and_gradients(kernel, arrays, toward, valid_tokens):
    def total(q, k, v, bias=None):
        out = kernel(q, k, v, bias=bias, valid_tokens=valid_tokens)
        return (out * toward).sum(), out

    gradient = jax.grad(total, argnums=tuple(range(len(arrays))), has_aux=True)
    gradients, out = jax.jit(gradient)(*arrays)
    return out, *gradients


def check_equal_to_the_formula(found, arrays, toward, valid_tokens):
    formula = functools.partial(attend, implementation="einsum")
    expected = output_and_gradients(formula, arrays, toward, valid_tokens)
    for ours, theirs in zip(found, expected, strict=True):
        assert np.abs(theirs).max() > 0.1
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", CANDIDATES)
@pytest.mark.parametrize("case", CASES)
def test_outputs_and_gradients_equal_those_of_the_formula(case, name, interpreted):
    *sizes, valid = CASES[case]
    inputs = *random_inputs(*sizes, batch=1 if case == "two blocks" else 2), valid
    check_equal_to_the_formula(
        interpreted(output_and_gradients, CANDIDATES[name], *inputs), *inputs
    )


@pytest.mark.slow
def test_flash_attention_adds_a_bias(interpreted):
    inputs = *random_inputs(9, 64, has_bias=True), 8
    check_equal_to_the_formula(interpreted(output_and_gradients, flash, *inputs), *inputs)


def test_splash_attention_with_a_bias_is_an_error():
    arrays, _ = random_inputs(9, 64, has_bias=True)
    with pytest.raises(ModelError, match="splash attention with a position bias"):
        splash(*arrays[:3], bias=arrays[3])


def run(*options):
    small = ["--model=ViT-Nano/4", "--batch_size=2", "--image_size=8", "--rounds=1", "--steps=1"]
    return main(["bench", "step", *small, "--compare=attention", *options])


@pytest.mark.slow
def test_each_kernel_is_a_row_and_those_that_do_not_run_here_have_a_reason(tmp_path, capsys):
    output = tmp_path / "bench.json"
    assert run(f"--output={output}") == 0
    first, *others = json.loads(output.read_text())["rows"]
    assert (first["name"], first["attention"]) == ("vit_jax", "einsum")
    assert {row["attention"] for row in others} == {*IMPLEMENTATIONS, *CANDIDATES} - {"einsum"}
    by_name = {row["attention"]: row for row in others}
    assert by_name["xla"]["images_per_second"] > 0
    assert "problem" not in by_name["xla"]
    for name, reason in {
        "pallas": "a CPU interprets it",
        "cudnn": "needs a GPU, this is a cpu",
        "flash": "needs a TPU, this is a cpu",
        "splash": "needs a TPU, this is a cpu",
    }.items():
        assert reason in by_name[name]["problem"]
        assert by_name[name]["images_per_second"] is None
        assert set(by_name[name]) == {*first, "problem"}
    assert "attention of vit_jax: einsum (fastest on a CPU)" in capsys.readouterr().out


def test_a_model_without_attention_is_an_error(capsys):
    assert run("--model=Mixer-S/16") == 2
    assert "--compare=attention with Mixer-S/16; expected a ViT" in capsys.readouterr().err


@pytest.fixture(scope="module")
def config():
    arguments = argparse.Namespace(batch_size=2, dtype="float32", image_size=8)
    return _config(arguments, "ViT-Nano/4", ["accumulation_steps=1"])


@pytest.fixture(scope="module")
def first(config):
    with jax.numpy_dtype_promotion("standard"):
        return JaxStep(config)


def test_a_candidate_computes_the_self_attention_of_a_step(config, first, monkeypatch):
    def copy_values(query, key, value, *, bias, valid_tokens):
        seen.append((value.shape, bias, valid_tokens))
        return value

    seen = []
    monkeypatch.setitem(CANDIDATES, "copy", copy_values)
    step = JaxStep(config, kernel="copy", shares=first)
    # Two images of 2 x 2 patches and a class token; two heads of 16 features.
    assert set(seen) == {((2, 5, 2, 16), None, None)}
    assert (step.measurement.name, step.measurement.attention) == ("vit_jax, copy", "copy")


def test_a_failed_step_leaves_the_others_a_state(config, first, monkeypatch):
    def out_of_memory(state, *rest):
        jax.tree.map(lambda array: array.delete(), state)
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(first, "compiled", out_of_memory)
        with pytest.raises(jax.errors.JaxRuntimeError):
            first.time(1)
    assert first.time(1) > 0


class FakeStep:
    """A step that is not compiled; einsum and flash attention do not work."""

    choice = StepChoice(LayerLoop(True, "dots"), 2, "made up")

    def __init__(self, config, *, kernel=None, shares=None):
        self.config, self.kernel, self.shares = config, kernel, shares
        name = config.model.attention_implementation
        self.attention = AttentionChoice(name, 5, "requested")
        if kernel == "flash" or name == "einsum":
            raise NotImplementedError("no such instruction\nand more")


def test_all_other_kernels_are_tried_and_those_that_fail_give_the_reason(config, monkeypatch):
    monkeypatch.setattr("vit_jax.bench.step.kernel_problem", lambda name, platform: None)
    monkeypatch.setattr("vit_jax.bench.step.JaxStep", FakeStep)
    config = config.replace(model=config.model.replace(attention_implementation="pallas"))
    first = FakeStep(config)
    # Without the check of types, which expects a real step.
    working, failed = attention_steps.__wrapped__(config, first)
    assert {step.attention: step.problem for step in failed} == {
        "einsum": "no such instruction",
        "flash": "no such instruction",
    }
    found = [(step.config.model.attention_implementation, step.kernel) for step in working]
    assert found == [("cudnn", None), ("xla", None), ("xla", "splash")]
    # They differ from the first step only in the kernel.
    for step in working:
        model = step.config.model
        assert (model.scan, model.remat, step.config.accumulation_steps) == (True, "dots", 2)
        assert step.shares is first


@pytest.mark.parametrize("shape", [(197, 12, 64, None), (578, 16, 80, 577)])
@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None, reason="libtpu is not installed: jax[tpu]"
)
def test_the_kernels_compile_for_a_tpu(shape):
    """In a process of its own, because the TPU compiler needs other settings of JAX."""
    done = subprocess.run(
        [sys.executable, "-c", _COMPILE, repr(shape)],
        capture_output=True,
        text=True,
        timeout=1500,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr
    # Flash attention has two kernels for its gradients, splash attention one.
    assert json.loads(done.stdout) == {"flash": 3, "splash": 2}


_COMPILE = """
import json, sys
from vit_jax.plan.topology import find_devices, parse_topology, prepare

topology = parse_topology("v5e:2x2")
prepare(topology)
import jax
from jax import numpy as jnp
from vit_jax.bench.attention_kernels import CANDIDATES

tokens, heads, head_dim, valid = eval(sys.argv[1])
here = jax.sharding.SingleDeviceSharding(find_devices(topology)[0])
x = jax.ShapeDtypeStruct((2, tokens, heads, head_dim), jnp.bfloat16, sharding=here)
kernels = {}
for name, kernel in CANDIDATES.items():
    def total(q, k, v):
        return kernel(q, k, v, valid_tokens=valid).astype(jnp.float32).sum()
    text = jax.jit(jax.grad(total, (0, 1, 2))).lower(x, x, x).compile().as_text()
    kernels[name] = text.count('custom_call_target="tpu_custom_call"')
print(json.dumps(kernels))
"""
