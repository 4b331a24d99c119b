import numpy as np

from vit_jax.evaluation.knn import knn_accuracies


def by_numpy(bank, bank_labels, queries, k, classes):
    """Predicts the class of each query by sorting all similarities."""
    unit = [x / np.linalg.norm(x, axis=1, keepdims=True) for x in (bank, queries)]
    similarity = unit[1].astype(np.float64) @ unit[0].T
    nearest = np.argsort(-similarity, axis=1, kind="stable")[:, :k]
    found = []
    for row, places in zip(similarity, nearest, strict=True):
        weights = np.exp(row[places] / 0.07)
        found.append(np.bincount(bank_labels[places], weights, classes).argmax())
    return np.array(found)


def test_accuracies_equal_those_from_sorting_all_similarities():
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(5, 8))
    labels, wanted = rng.integers(5, size=300), rng.integers(5, size=1500)
    bank = (centres[labels] + 1.5 * rng.normal(size=(300, 8))).astype(np.float32)
    queries = (centres[wanted] + 1.5 * rng.normal(size=(1500, 8))).astype(np.float32)
    counts, numbers = [1, 4, 20, 300], (labels.astype(np.int32), wanted.astype(np.int32))
    found = knn_accuracies(bank, numbers[0], queries, numbers[1], counts, num_classes=5)
    expected = [(by_numpy(bank, labels, queries, k, 5) == wanted).mean() for k in counts]
    np.testing.assert_allclose(found, expected, atol=1 / 1500)
    assert found[0] < found[2]


def one(k, *degrees):
    """Predicts the class of (1, 0) from a neighbour of class 1 and two of class 0, by angle."""
    angles = np.radians(degrees)
    bank = np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32) * 3
    query, classes = np.array([[7, 0]], np.float32), np.array([1, 0, 0], np.int32)
    found = [
        knn_accuracies(bank, classes, query, np.array([label], np.int32), [k], num_classes=2)[0]
        for label in (0, 1)
    ]
    return int(np.argmax(found))


def test_votes_by_hand():
    # cos 5, 40, 41 degrees: 0.996, 0.766, 0.755. exp(0.23 / 0.07) is 27 times the vote of one.
    assert one(3, 5, 40, 41) == 1
    assert one(50, 5, 40, 41) == 1  # More than there are.
    # cos 5, 10, 11 degrees: 0.996, 0.985, 0.982. Two votes of exp(-0.01 / 0.07) beat one.
    assert one(3, 5, 10, 11) == 0
    assert one(1, 5, 10, 11) == 1
    assert one(2, 5, 5, 11) == 0  # A tie: the lower class.
