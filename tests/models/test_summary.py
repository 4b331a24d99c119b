import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from vit_jax.models.registry import build_model, model_options
from vit_jax.models.summary import fitting_image_size, parameters_by_part, summarize

F32 = 4


def summary(name, image_size=224, num_classes=1000, **options):
    config = model_options(name, **options)
    return summarize(config, num_classes=num_classes, image_size=image_size)


def test_parameters_by_part_by_hand():
    found = summary("ViT-B/16", num_registers=4)
    block = 4 * (768 * 768 + 768) + (768 * 3072 + 3072) + (3072 * 768 + 768) + 4 * 768
    assert list(found.parts.items()) == [
        ("patch_embedding", 16 * 16 * 3 * 768 + 768),
        ("class_token", 768),
        ("registers", 4 * 768),
        ("position_embedding", 197 * 768),
        ("encoder", 12 * block),
        ("norm", 2 * 768),
        ("head", 768 * 1000 + 1000),
    ]


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("BiT-R-Mini", "trunk norm head"),
        ("Mixer-S/16", "patch_embedding blocks norm head"),
        ("R+ViT-Mini/4", "stem patch_embedding class_token position_embedding encoder norm head"),
    ],
)
def test_every_parameter_belongs_to_a_part(name, parts):
    config = model_options(name)
    sizes = {"num_classes": 10, "image_size": 32, "key": jax.random.key(0)}
    model = nnx.eval_shape(lambda: build_model(config, **sizes))
    found = parameters_by_part(model)
    assert list(found) == parts.split()
    leaves = jax.tree.leaves(nnx.to_pure_dict(nnx.state(model, nnx.Param)))
    assert sum(found.values()) == sum(leaf.size for leaf in leaves)


def test_a_resnet_has_a_map_and_no_tokens():
    found = summary("BiT-R-Mini", image_size=33)
    assert found.tokens is None
    assert ("last feature map", "9 x 9", "512 channels, stride 4") in found.sizes
    assert found.activations.attention_bytes == 0


@pytest.mark.parametrize(
    ("name", "image_size", "options"),
    [
        ("ViT-B/16", 64, {"dropout": 0.1, "stochastic_depth": 0.1, "num_registers": 2}),
        ("ViT-B/16", 64, {"remat": "dots", "dtype": "bfloat16", "pooling": "flatten"}),
        ("ViT-B/16", 64, {"pooling": "map", "mlp": "swiglu", "attention_implementation": "xla"}),
        ("ViT-S/16", 64, {"scan": False, "depth": 1, "position_embedding": "relative"}),
        ("R+ViT-Mini/4", 32, {"depth": 1}),
        ("Mixer-S/16", 64, {"stochastic_depth": 0.1, "remat": "full"}),
        *(
            pytest.param(name, size, options, marks=pytest.mark.slow)
            for name, size, options in (
                ("BiT-R-Mini", 32, {"remat": "dots"}),
                ("ViT-B/16", 64, {}),
                ("ViT-B/16", 64, {"pooling": "flatten", "position_embedding": "relative"}),
                ("ViT-B/16", 64, {"position_embedding": "rope_2d"}),
                ("ViT-S/16", 64, {"scan": False, "depth": 2}),
            )
        ),
    ],
)
def test_activations_equal_the_memory_per_additional_image(name, image_size, options):
    found = summary(name, image_size, **options)
    config = model_options(name, **options)
    kept = [
        sum(leaf.size * leaf.dtype.itemsize for leaf in residuals(config, image_size, batch))
        for batch in (2, 3)
    ]
    # ResNets keep the images themselves, which `Activations` leaves out.
    images = image_size**2 * 3 * F32 if "R" in name.replace("ViT", "") else 0
    assert found.activations.total_bytes == kept[1] - kept[0] - images


def residuals(config, image_size, batch):
    model = nnx.eval_shape(
        lambda: build_model(
            config, num_classes=1000, image_size=image_size, key=jax.random.key(0), platform="cpu"
        )
    )
    graphdef, state = nnx.split(model)

    def kept(params, images):
        def forward(params):
            return nnx.merge(graphdef, params)(images, key=jax.random.key(0))

        return jax.tree.leaves(jax.vjp(forward, params)[1])

    images = jax.ShapeDtypeStruct((batch, image_size, image_size, 3), jnp.float32)
    return jax.eval_shape(kept, nnx.to_pure_dict(state), images)


def test_remat_and_flash_free_memory():
    plain, dots, full = (
        summary("ViT-Ti/16", remat=remat).activations for remat in ("none", "dots", "full")
    )
    assert plain.total_bytes > dots.total_bytes > full.total_bytes
    assert plain.attention_bytes == F32 * 12 * 3 * 197 * 197
    assert dots.attention_bytes == full.attention_bytes == 0


def test_square_activations_are_not_counted_as_attention_weights():
    """16 patches of width 16 without a class token: [B, N, D] ends like [B, H, N, N]."""
    found = summary(
        "ViT-Ti/16", 64, 0, pooling="gap", width=16, num_heads=2, mlp_dim=16, depth=5
    ).activations
    assert found.attention_bytes == F32 * 5 * 2 * 16 * 16


@pytest.mark.parametrize(
    ("name", "wanted", "image_size"),
    [
        ("ViT-B/16", 224, 224),
        ("ViT-B/15", 224, 225),
        ("ViT-H/14", 8, 14),
        ("R50+ViT-B/32", 225, 256),
        ("R+ViT-Ti/16", 33, 64),
        ("BiT-R50x1", 225, 225),
        ("Mixer-B/32", 225, 256),
    ],
)
def test_image_sizes_are_rounded_to_the_patch_size(name, wanted, image_size):
    config = model_options(name)
    assert fitting_image_size(config, wanted) == image_size
    sizes = {"num_classes": 10, "image_size": image_size, "key": jax.random.key(0)}
    nnx.eval_shape(lambda: build_model(config, **sizes))  # Raises ModelError if it does not fit.
