import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

from vit_jax.config.mesh import MeshConfig
from vit_jax.models.placement import Placement, constrain, current_placement, placed
from vit_jax.models.registry import create_model
from vit_jax.parallel.mesh import make_mesh


def mesh_of(devices: int, **sizes: int) -> jax.sharding.Mesh:
    """A mesh over one real device, listed several times: good for tracing."""
    return make_mesh(MeshConfig(**sizes), jax.devices()[:1] * devices)


def spec_of(mesh: jax.sharding.Mesh, shape: tuple[int, ...], *dimensions) -> P | None:
    """What a placed function says of a value; None where it says nothing."""
    function = placed(lambda x: constrain(x, *dimensions), Placement(mesh))
    eqns = jax.make_jaxpr(function)(jnp.zeros(shape)).jaxpr.eqns
    return eqns[0].params["sharding"].spec if eqns else None


def test_without_a_mesh_and_on_one_device_nothing_is_said():
    x = jnp.zeros((4, 4))
    assert constrain(x, "batch", "tensor") is x
    assert spec_of(mesh_of(1), (4, 4), "batch") is None


@pytest.mark.parametrize(
    ("shape", "dimensions", "spec"),
    [
        ((8, 5, 6), ("batch",), P(("data", "fsdp"))),
        ((8, 5, 6), ("batch", None, "tensor"), P(("data", "fsdp"), None, ("tensor",))),
        # Three heads on two devices, and six examples on four.
        ((8, 5, 3), ("batch", None, "tensor"), P(("data", "fsdp"), None, None)),
        ((6, 5, 4), ("batch", None, "tensor"), P(None, None, ("tensor",))),
    ],
)
def test_dimensions_are_cut_over_their_axes_where_these_divide_them(shape, dimensions, spec):
    assert spec_of(mesh_of(8, fsdp=2, tensor=2), shape, *dimensions) == spec


def test_a_placement_holds_inside_its_function_alone():
    outer, inner = Placement(gradient_dtype="float32"), Placement(gradient_dtype="bfloat16")

    def fail():
        assert current_placement() == inner
        raise RuntimeError

    def run():
        with pytest.raises(RuntimeError):
            placed(fail, inner)()
        return current_placement()

    assert placed(run, outer)() == outer
    assert current_placement() == Placement()


def test_a_model_says_where_its_values_live_on_a_mesh_and_nothing_without():
    model = create_model(
        "ViT-Ti/4", width=16, depth=2, mlp_dim=32, num_heads=4, num_classes=8, image_size=8
    )
    images = jnp.zeros((8, 8, 8, 3))

    def constraints(function):
        return str(jax.make_jaxpr(function)(images)).count("sharding_constraint[")

    assert constraints(model.__call__) == 0
    on_mesh = Placement(mesh_of(8, fsdp=2, tensor=2))
    # Embedding, end, features, logits; in the one block of the loop its input, queries with keys
    # and values, attended, hidden, and what each branch adds.
    assert constraints(placed(model.__call__, on_mesh)) == 4 + 6
