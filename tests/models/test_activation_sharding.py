import jax
import jax.numpy as jnp
import pytest
from fake_devices import mesh_of
from jax.sharding import PartitionSpec as P
from random_models import random_model

from vit_jax.models.activation_sharding import constrain, gathered, with_mesh


def spec_of(mesh: jax.sharding.Mesh, shape: tuple[int, ...], *dimensions) -> P | None:
    """The constraint that is traced for a value; None: there is none."""
    function = with_mesh(lambda x: constrain(x, *dimensions), mesh)
    eqns = jax.make_jaxpr(function)(jnp.zeros(shape)).jaxpr.eqns
    return eqns[0].params["sharding"].spec if eqns else None


def test_without_a_mesh_or_on_one_device_there_is_no_constraint():
    x = jnp.zeros((4, 4))
    assert constrain(x, "batch", "tensor") is x
    assert spec_of(mesh_of(1), (4, 4), "batch") is None


@pytest.mark.parametrize(
    ("shape", "dimensions", "spec"),
    [
        ((8, 5, 6), ("batch",), P(("data", "fsdp"))),
        ((8, 5, 6), ("batch", None, "tensor"), P(("data", "fsdp"), None, "tensor")),
        # Three heads on two devices, and six examples on four.
        ((8, 5, 3), ("batch", None, "tensor"), P(("data", "fsdp"), None, None)),
        ((6, 5, 4), ("batch", None, "tensor"), P(None, None, "tensor")),
    ],
)
def test_dimensions_are_split_over_axes_that_divide_them(shape, dimensions, spec):
    assert spec_of(mesh_of(8, fsdp=2, tensor=2), shape, *dimensions) == spec


@pytest.mark.parametrize(
    ("axes", "is_whole"), [({"fsdp": 8}, True), ({"fsdp": 4, "tensor": 2}, False), ({}, False)]
)
def test_a_layer_has_its_parameters_whole_if_they_are_sharded_by_fsdp_only(axes, is_whole):
    jaxpr = jax.make_jaxpr(with_mesh(gathered, mesh_of(8, **axes)))({"kernel": jnp.zeros((8, 4))})
    specs = [eqn.params["sharding"].spec for eqn in jaxpr.jaxpr.eqns]
    assert specs == [P()] * is_whole


def test_the_mesh_is_set_only_inside_the_function():
    mesh = mesh_of(4)

    def shape_of_mesh():
        return dict(jax.sharding.get_abstract_mesh().shape)

    assert with_mesh(shape_of_mesh, mesh)() == {"data": 4, "fsdp": 1, "tensor": 1}
    assert shape_of_mesh() == {}
    with pytest.raises(ZeroDivisionError):
        with_mesh(lambda: 1 / 0, mesh)()
    assert shape_of_mesh() == {}


@pytest.mark.parametrize(
    ("name", "sizes", "count"),
    [
        # Embedding, end, features, logits; in the scanned block its input, queries with keys and
        # values, attended, hidden, and the result of each branch.
        ("ViT-Ti/4", {"width": 16, "depth": 2, "mlp_dim": 32, "num_heads": 4}, 4 + 6),
        # The same four; in the block its input, and of each branch hidden features and result.
        ("Mixer-S/4", {"width": 16, "depth": 2, "token_mlp_dim": 8, "channel_mlp_dim": 8}, 4 + 5),
    ],
)
def test_a_model_has_constraints_on_a_mesh_and_none_without(name, sizes, count):
    model = random_model(name, num_classes=8, image_size=8, **sizes)
    images = jnp.zeros((8, 8, 8, 3))

    def constraints(function):
        return str(jax.make_jaxpr(function)(images)).count("sharding_constraint[")

    assert constraints(model.__call__) == 0
    assert constraints(with_mesh(model.__call__, mesh_of(8, fsdp=2, tensor=2))) == count
