import pytest

from vit_jax.models.costs import _table, default_cost, known_cost
from vit_jax.models.registry import list_models, model_options

_FIX = "run: python -m vit_jax.models.costs"


@pytest.mark.parametrize("name", ["ViT-B/16", "R+ViT-Nano/4", "BiT-R-Nano", "Mixer-S/32"])
def test_the_table_has_what_the_code_gives(name):
    assert _table()[name] == default_cost(name), _FIX


@pytest.mark.slow
def test_the_whole_table_has_what_the_code_gives():
    assert list(_table()) == list_models(), _FIX
    for name, cost in _table().items():
        assert cost == default_cost(name), _FIX


def test_other_options_and_sizes_are_not_in_the_table():
    options = model_options("ViT-B/16")
    known = known_cost(options, num_classes=1000, image_size=224)
    assert known is not None
    assert known.parameters == 86_567_656
    assert known_cost(options, num_classes=1000, image_size=384) is None
    assert known_cost(options, num_classes=10, image_size=224) is None
    wider = model_options("ViT-B/16", mlp_dim=128)
    assert known_cost(wider, num_classes=1000, image_size=224) is None
    assert known_cost(model_options("ViT-B/15"), num_classes=1000, image_size=225) is None
