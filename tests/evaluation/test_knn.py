import numpy as np
import pytest

from vit_jax.evaluation.knn import knn_accuracies


def by_numpy(bank, bank_labels, queries, k, classes, vote, temperature):
    """Predicts the class of each query by sorting all similarities."""
    unit = [x / np.linalg.norm(x, axis=1, keepdims=True) for x in (bank, queries)]
    similarity = unit[1].astype(np.float64) @ unit[0].T
    nearest = np.argsort(-similarity, axis=1, kind="stable")[:, :k]
    found = []
    for row, places in zip(similarity, nearest, strict=True):
        weights = np.exp(row[places] / temperature) if vote == "weighted" else np.ones(k)
        found.append(np.bincount(bank_labels[places], weights, classes).argmax())
    return np.array(found)


@pytest.mark.parametrize("vote", ["weighted", "majority"])
def test_accuracies_equal_those_from_sorting_all_similarities(vote):
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(5, 8))
    labels, wanted = rng.integers(5, size=300), rng.integers(5, size=1500)
    bank = (centres[labels] + 1.5 * rng.normal(size=(300, 8))).astype(np.float32)
    queries = (centres[wanted] + 1.5 * rng.normal(size=(1500, 8))).astype(np.float32)
    counts = [1, 4, 20, 300]
    found = knn_accuracies(
        bank,
        labels.astype(np.int32),
        queries,
        wanted.astype(np.int32),
        counts,
        num_classes=5,
        vote=vote,
        temperature=0.07,
    )
    expected = [
        (by_numpy(bank, labels, queries, k, 5, vote, 0.07) == wanted).mean() for k in counts
    ]
    np.testing.assert_allclose(found, expected, atol=1 / 1500)
    assert found[0] < found[2]


def one(vote, k, temperature=0.07):
    """Predicts the class of (1, 0): one close neighbour of class 1, two distant ones of class 0."""
    angles = np.radians([5, 40, 41])
    bank = np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32) * 3
    query = np.array([[7, 0]], np.float32)
    found = [
        knn_accuracies(
            bank,
            np.array([1, 0, 0], np.int32),
            query,
            np.array([label], np.int32),
            [k],
            num_classes=2,
            vote=vote,
            temperature=temperature,
        )[0]
        for label in (0, 1)
    ]
    return int(np.argmax(found))


def test_votes_by_hand():
    # cos 5, 40, 41 degrees: 0.996, 0.766, 0.755. exp(0.23 / 0.07) is 27 times the vote of one.
    assert one("majority", 3) == 0
    assert one("weighted", 3) == 1
    assert one("weighted", 3, temperature=10.0) == 0
    assert one("majority", 1) == 1
    assert one("majority", 2) == 0  # A tie: the lower class.
    assert one("weighted", 50) == 1  # More than there are.


def test_a_tiny_temperature_does_not_overflow():
    assert one("weighted", 3, temperature=1e-4) == 1
