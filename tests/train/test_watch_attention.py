import jax
import numpy as np
import pytest
from flax import nnx

from vit_jax.config.run import Config
from vit_jax.errors import ConfigError
from vit_jax.parallel.mesh import make_mesh
from vit_jax.train.hooks.watch_attention import make_largest_logits
from vit_jax.train.program import build_program

MODEL = {
    "name": "ViT-Ti/4", "width": 16, "depth": 3, "mlp_dim": 32, "num_heads": 2, "dropout": 0.5,
}  # fmt: skip


def config_of(model):
    return Config.from_mapping(
        {
            "model": model,
            "data": {"name": "digits", "image_size": 8, "global_batch_size": 10},
            "optimizer": {"learning_rate": 1e-3},
            "train_steps": 2,
            "logging": {"attention_interval_steps": 1},
        }
    )


def test_each_layers_largest_logit_is_measured_without_dropout():
    config = config_of(MODEL)
    program = build_program(config, make_mesh(config.mesh), num_classes=10, num_examples=100)
    params = program.init().params
    images = np.random.default_rng(0).integers(0, 256, (10, 8, 8, 3)).astype(np.uint8)
    found = make_largest_logits(program)(params, images)
    model = nnx.merge(program.graphdef, params)
    # 4 of 10 images are wanted, so every second image is used.
    few = jax.numpy.asarray(images[::2], jax.numpy.float32) / 127.5 - 1
    run = jax.jit(lambda images: model(images, return_intermediates=("max_attention_logit",)))
    _, want = run(few)
    layers = np.asarray(want["max_attention_logit"]).max((1, 2))
    assert layers.shape == (3,)
    np.testing.assert_allclose(found, layers, rtol=1e-5)


@pytest.mark.parametrize("name", ["BiT-R-Mini", "Mixer-S/4"])
def test_a_model_without_attention_is_refused(name):
    with pytest.raises(ConfigError, match=f"attention_interval_steps' is set for {name}"):
        config_of({"name": name})
