import pickle

import pytest

from vit_jax.errors import (
    ConfigError,
    DataError,
    ModelError,
    RunFolderError,
    UserError,
    nearest,
)


def test_a_message_is_one_line_of_got_expected_and_fix():
    error = ConfigError("two\nlines", "one\t\tline", "join\r\n  them")
    assert str(error) == "two lines; expected one line; join them"


@pytest.mark.parametrize("kind", [ConfigError, ModelError, DataError, RunFolderError])
def test_every_kind_is_a_user_error_and_a_value_error_and_can_be_pickled(kind):
    error = pickle.loads(pickle.dumps(kind("got", "expected", "fix")))
    assert type(error) is kind
    assert isinstance(error, UserError)
    assert isinstance(error, ValueError)
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
