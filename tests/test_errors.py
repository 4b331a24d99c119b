import pickle

import pytest

from vit_jax import errors
from vit_jax.errors import ConfigError, DataError, UserError, nearest


def test_a_message_has_got_expected_and_fix():
    error = UserError("a tap", "a tub", "turn the handle")
    assert str(error) == "a tap; expected a tub; turn the handle"
    assert (error.got, error.expected, error.fix) == ("a tap", "a tub", "turn the handle")


def test_a_message_is_one_line_even_if_its_parts_have_newlines():
    error = ConfigError("two\nlines", "one\t\tline", "join\r\n  them")
    assert str(error) == "two lines; expected one line; join them"


@pytest.mark.parametrize(
    "name",
    [
        "ConfigError", "ModelError", "DataError", "RunFolderError", "CheckpointError",
        "DivergenceError",
    ],
)  # fmt: skip
def test_every_kind_is_a_user_error_and_a_value_error(name):
    kind = getattr(errors, name)
    assert issubclass(kind, UserError)
    assert issubclass(kind, ValueError)


def test_pickle_keeps_the_kind_and_the_parts():
    error = pickle.loads(pickle.dumps(DataError("got", "expected", "fix")))
    assert type(error) is DataError
    assert (error.got, error.expected, error.fix) == ("got", "expected", "fix")


@pytest.mark.parametrize(
    ("name", "names", "expected"),
    [
        ("lerning_rate", ["learning_rate", "weight_decay", "name"], "learning_rate"),
        ("VIT-b/16", ["ViT-B/16", "ViT-B/32", "ViT-L/16"], "ViT-B/16"),
        ("zzz", ["b", "a"], "a"),  # Nothing alike: the first in order.
        ("x", [], ""),
    ],
)
def test_nearest_ignores_case_and_always_returns_a_name(name, names, expected):
    assert nearest(name, names) == expected
