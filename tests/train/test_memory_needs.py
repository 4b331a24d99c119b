import jax
import pytest
from small_config import small_mapping

from vit_jax import memory
from vit_jax.config.mesh import MeshConfig
from vit_jax.config.run import Config
from vit_jax.errors import MemoryLimitError
from vit_jax.parallel.mesh import make_mesh
from vit_jax.train import memory_needs
from vit_jax.train.program import build_program


@pytest.fixture(autouse=True)
def _machine(monkeypatch):
    """A machine with 24 GB."""
    monkeypatch.setattr(memory, "machine_bytes", lambda: 24 * 10**9)


def build(num_classes=10, *, planned=False, **changes):
    config = Config.from_mapping(small_mapping(**changes))
    mesh = make_mesh(MeshConfig())
    return build_program(config, mesh, num_classes=num_classes, num_examples=100, planned=planned)


@pytest.mark.parametrize(
    ("changes", "estimate"),
    [
        # 128 x 1,000,000^2 x 3 channels x 1 byte, and so on, all by hand.
        ({"data__image_size": 1_000_000}, "384.0 TB for a batch of 128 images of 1,000,000 x"),
        ({"data__global_batch_size": 10**11}, "15.1 PB for a batch of 100,000,000,000 images"),
        ({"evaluation__batch_size": 10**9}, "150.5 TB for a batch of 1,000,000,000 images"),
        ({"data__num_workers": 1000}, "40.0 GB for 1,000 reader processes"),
        (
            {
                "data__image_size": 40_000,
                "data__global_batch_size": 1,
                "data__augment": {"crop": {"name": "pad", "pixels": 39_999}},
                "train_steps": 1,
            },
            "43.2 GB for an image of 40,000 x 40,000 pixels with 39,999 around it",
        ),
        ({"num_classes": 10**10}, "40.0 GB for the logits of 10,000,000,000 classes"),
        ({"model__width": 3 * 10**9}, "2.4 TB for 197 tokens of width 3,000,000,000"),
        ({"model__depth": 10**9}, "768.0 GB for 1,000,000,000 layers of width 192"),
    ],
)
def test_sizes_that_cannot_fit_are_refused_with_the_estimate(changes, estimate):
    with pytest.raises(MemoryLimitError) as caught:
        build(**changes)
    assert caught.value.got.startswith(estimate)
    assert caught.value.got.endswith("this machine has 24.0 GB")


def test_the_largest_parameter_is_named():
    """The head has 192 x 5,000,000 float32: 3.8 GB. With gradients and AdamW's moments, 4 times."""
    with pytest.raises(MemoryLimitError) as caught:
        build(num_classes=10_000_000)
    assert "(head/linear/kernel alone has 7.7 GB); this machine has 24.0 GB" in str(caught.value)
    build(num_classes=5_000_000)


def test_a_plan_is_not_limited_by_this_machine():
    assert build(num_classes=10_000_000, planned=True).num_parameters() > 1.9e9
    with pytest.raises(MemoryLimitError, match=r"one array of XLA has 1\.2 EB"):
        build(planned=True, data__image_size=100_000_000_000)


def test_a_compiled_step_must_fit(monkeypatch):
    """The product of two 1000 x 1000 matrices has 8 MB of arguments."""
    shape = jax.ShapeDtypeStruct((1000, 1000), "float32")
    compiled = jax.jit(lambda a, b: a @ b).lower(shape, shape).compile()
    memory_needs.check_step(compiled, make_mesh(MeshConfig()))
    monkeypatch.setattr(memory, "machine_bytes", lambda: 7_000_000)
    with pytest.raises(MemoryLimitError, match=r"8\.0 MB for a training step"):
        memory_needs.check_step(compiled, make_mesh(MeshConfig()))
