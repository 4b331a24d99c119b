import jax
import numpy as np
import numpy_reference as reference
import pytest
from random_models import (
    assert_equal_training,
    assert_every_parameter_gets_a_gradient,
    params64,
    random_images,
    random_model,
    run,
)
from small_config import small_mapping

from vit_jax.config.mesh import MeshConfig
from vit_jax.config.run import Config
from vit_jax.errors import ConfigError, ModelError
from vit_jax.models.registry import create_model
from vit_jax.parallel.mesh import make_mesh, to_devices
from vit_jax.train.program import build_program

TINY = {"width": 8, "depth": 2, "token_mlp_dim": 5, "channel_mlp_dim": 12}


def make(**options):
    """A tiny Mixer with 2x3 patches of 4 pixels, every parameter random."""
    return random_model("Mixer-S/4", image_size=(8, 12), **{**TINY, **options})


def images(batch=2):
    return random_images(batch, (8, 12))


def test_logits_equal_the_formula_written_out_in_float64():
    model, x = make(), images()
    with jax.default_matmul_precision("highest"):
        found = run(model, x)
    params = params64(model)
    want = [reference.mixer(image, params) for image in np.float64(x)]
    np.testing.assert_allclose(found, want, rtol=2e-5, atol=2e-5)


def test_remat_and_unrolling_change_neither_output_nor_gradient():
    variants = ({}, {"scan": False}, {"remat": "full"}, {"remat": "dots"})
    models = [make(stochastic_depth=0.3, **variant) for variant in variants]
    assert_equal_training(models, images(), key=jax.random.key(3))


def test_every_parameter_gets_a_gradient_except_one_cancelled_by_the_norms():
    """That bias adds the same number to all channels of a token; every LayerNorm subtracts it."""
    zero = ("blocks/token_mixing/contract/bias",)
    assert_every_parameter_gets_a_gradient(make(), images(), zero)


def test_a_new_model_has_lecun_kernels():
    model = create_model("Mixer-S/4", image_size=8, width=64, depth=2)
    mlp = model.blocks.channel_mixing
    kernel = np.asarray(mlp.expand.kernel[...])
    assert np.std(kernel) == pytest.approx(64**-0.5, rel=0.02)
    assert np.abs(mlp.expand.bias[...]).max() == 0
    assert np.std(kernel[0] - kernel[1]) > 0.01


def test_intermediates_are_named_and_consistent():
    model = make()
    names = ("embedded", "token_mixing_output", "block_output", "encoded", "pre_logits")
    logits, found = run(model, images(), return_intermediates=names)
    assert {name: value.shape for name, value in found.items()} == {
        "embedded": (2, 6, 8),
        "token_mixing_output": (2, 2, 6, 8),
        "block_output": (2, 2, 6, 8),
        "encoded": (2, 6, 8),
        "pre_logits": (2, 8),
    }
    np.testing.assert_allclose(found["encoded"].mean(1), found["pre_logits"], rtol=1e-5)
    np.testing.assert_allclose(run(model.head, found["pre_logits"])[0], logits, rtol=1e-5)


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"image_size": 10}, ModelError, "10x10 with patch size 4; expected a multiple of 4"),
        ({"stochastic_depth": 1.0}, ConfigError, "below 1"),
    ],
)
def test_sizes_and_options_that_do_not_fit_are_named(options, error, match):
    with pytest.raises(error, match=match):
        create_model("Mixer-S/4", **{"image_size": 8, **TINY, **options})


@pytest.mark.slow
def test_a_training_step_lowers_the_loss_of_its_batch():
    changes = {"optimizer__layer_decay": 0.7, "optimizer__schedule__decay": "constant"}
    changes |= {"data__global_batch_size": 8, "data__image_size": 8, "train_steps": 8}
    model = {"name": "Mixer-S/4", "stochastic_depth": 0.1, **TINY}
    config = Config.from_mapping(small_mapping(model=model, **changes))
    program = build_program(config, make_mesh(MeshConfig()), num_classes=5, num_examples=80)
    batch = program.example_batch() | {"label": np.arange(8, dtype=np.int32) % 5}
    with jax.numpy_dtype_promotion("standard"):  # Optax promotes types.
        state, step, losses = program.init(), program.compiled, []
    with jax.numpy_dtype_promotion("standard"):  # For optax.adam.
        for _ in range(8):
            state, metrics = step(state, to_devices(batch, program.mesh))
            losses.append(float(metrics["train/loss"]))
    assert losses[0] == pytest.approx(np.log(5), rel=1e-5)
    assert losses[-1] < losses[0]
