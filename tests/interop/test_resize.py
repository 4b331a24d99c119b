"""Position tables whose number of vectors is not that of the model."""

import numpy as np
import pytest

from vit_jax.errors import WeightsError
from vit_jax.interop.resize import Target, fit_parameter

NAME = "position_embedding/table"


def fit(vectors, wanted):
    """Fits a table of vectors 0, 1, 2, ... for a grid of 2 x 2 to a number of vectors."""
    table = np.arange(float(vectors), dtype=np.float32).reshape(1, vectors, 1)
    target = Target({NAME: (1, wanted, 1)}, (2, 2), (2, 2), (8, 8), "zoom")
    return fit_parameter(NAME, table, target)[0, :, 0].tolist()


@pytest.mark.parametrize(
    ("vectors", "wanted", "expected"),
    [
        (4, 4, [0, 1, 2, 3]),
        (5, 5, [0, 1, 2, 3, 4]),
        (5, 4, [1, 2, 3, 4]),  # The vector of the class token is dropped, not that of a patch.
        (4, 5, [0, 0, 1, 2, 3]),  # A class token without a vector gets zeros.
    ],
)
def test_a_table_fits_models_with_and_without_a_class_token(vectors, wanted, expected):
    assert fit(vectors, wanted) == expected


@pytest.mark.parametrize("vectors", [3, 6])
def test_a_table_of_another_number_of_vectors_is_refused(vectors):
    with pytest.raises(WeightsError, match=f"{vectors} vectors for a grid of 2x2"):
        fit(vectors, 4)
