import re
from collections import Counter

import numpy as np
import pytest
from processes import UNMIXED

from vit_jax.config.data import DataConfig, MemberConfig
from vit_jax.config.file import load_config
from vit_jax.config.run import Config
from vit_jax.data.arrays import ArraySpec, Preprocessing
from vit_jax.data.loader import BatchSpec, train_batches
from vit_jax.data.sources import Example, open_source, open_training_data
from vit_jax.data.sources.mixture import MixtureSource, slots_by_weight
from vit_jax.errors import ConfigError, DataError


class Numbers:
    """Example i of n: image "NAME i", label i % classes."""

    def __init__(self, name: str, count: int, class_names=("x", "y")):
        self.name, self.fingerprint, self.class_names = name, name * 2, tuple(class_names)
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> Example:
        assert 0 <= index < self._count
        label = index % len(self.class_names)
        return Example(f"{self.name} {index}".encode(), label, str(index))

    def read(self, indices):
        return [self[i] for i in indices]


def mix(weights, **members):
    sizes = {name: len(member) for name, member in members.items()}
    return MixtureSource(members, slots_by_weight(sizes, weights))


@pytest.mark.parametrize(
    ("sizes", "weights", "slots"),
    [
        ((100, 10), (1, 1), (100, 100)),
        ((100, 10), (10, 1), (100, 10)),
        ((100, 10), (19, 1), (190, 10)),
        ((100, 10), (0.25, 0.75), (100, 300)),
        ((3, 7), (0.1, 0.2), (4, 7)),  # 3.5 of 10.5, rounded up.
    ],
)
def test_an_epoch_is_the_shortest_that_has_every_example_and_the_proportions(sizes, weights, slots):
    found = slots_by_weight(
        dict(zip("ab", sizes, strict=True)), dict(zip("ab", weights, strict=True))
    )
    assert found == dict(zip("ab", slots, strict=True))


def test_an_epoch_has_every_example_and_the_exact_proportions():
    source = mix({"a": 3.0, "b": 1.0}, a=Numbers("a", 30), b=Numbers("b", 7))
    assert len(source) == 30 + 10
    seen = Counter(e.image.decode() for e in source.read(range(len(source))))
    assert {name: count for name, count in seen.items() if name.startswith("a")} == {
        f"a {i}": 1 for i in range(30)
    }
    assert {name: count for name, count in seen.items() if name.startswith("b")} == {
        f"b {i}": 2 if i < 3 else 1 for i in range(7)
    }


def test_batches_have_about_the_proportions():
    source = mix({"a": 1.0, "b": 1.0}, a=Numbers("a", 5000), b=Numbers("b", 10))
    spec = BatchSpec(global_batch_size=100, rows=range(100), num_threads=0)
    member = Preprocessing(
        {"member": ArraySpec((), np.uint8)}, lambda example, rng: {"member": example.image[0]}
    )
    batches = train_batches(source, member, spec, seed=0, start_step=0, end_step=100)
    of_b = [(batch["member"] == ord("b")).sum() for batch in batches]
    assert sum(of_b) == 5000  # One epoch.
    assert 30 < min(of_b) < max(of_b) < 70  # 50 expected, standard deviation 5.


def test_reading_keeps_the_order_and_equals_reading_one_by_one():
    source = mix({"a": 1.0, "b": 2.0}, a=Numbers("a", 5), b=Numbers("b", 3))
    indices = [14, 0, 9, 0, 4, 5]
    assert source.read(indices) == [source[i] for i in indices]
    # Of b's ten positions, 5 to 14, the last is its example 9 % 3.
    message = ["b 0", "a 0", "b 1", "a 0", "a 4", "b 0"]
    assert [e.image.decode() for e in source.read(indices)] == message
    assert source[14].id == "b: 0"


def test_members_with_the_same_classes_share_labels():
    source = mix({"a": 1.0, "b": 1.0}, a=Numbers("a", 4), b=Numbers("b", 4))
    assert source.class_names == ("x", "y")
    assert [e.label for e in source.read(range(8))] == [0, 1] * 4


def test_other_classes_are_numbered_one_member_after_the_other():
    members = {
        "a": Numbers("a", 2),
        "b": Numbers("b", 3, ("p", "q", "r")),
        "c": Numbers("c", 2),
    }
    source = MixtureSource(members, {"a": 2, "b": 3, "c": 2})
    assert source.class_names == ("a/x", "a/y", "b/p", "b/q", "b/r")
    assert [e.label for e in source.read(range(7))] == [0, 1, 2, 3, 4, 0, 1]


def test_a_label_out_of_range_does_not_become_a_class_of_another_member():
    class Wrong(Numbers):
        def __getitem__(self, index):
            return Example(b"", [2, -1][index], "wrong")

    source = MixtureSource({"a": Wrong("a", 2), "b": Numbers("b", 1, "pqr")}, {"a": 2, "b": 1})
    assert [e.label for e in source.read(range(3))] == [-1, -1, 2]


def test_the_order_of_the_members_in_the_config_does_not_matter():
    a, b = Numbers("a", 4), Numbers("b", 9)
    one, other = mix({"a": 1.0, "b": 1.0}, a=a, b=b), mix({"a": 1.0, "b": 1.0}, b=b, a=a)
    assert one.fingerprint == other.fingerprint
    assert one.read(range(18)) == other.read(range(18))


def test_fingerprint_differs_by_member_and_weight():
    a, b, c = Numbers("a", 4), Numbers("b", 9), Numbers("c", 9)
    mixtures = [
        mix({"a": 1.0, "b": 1.0}, a=a, b=b),
        mix({"a": 2.0, "b": 1.0}, a=a, b=b),
        mix({"a": 1.0, "b": 1.0}, a=a, b=c),
    ]
    assert len({m.fingerprint for m in mixtures}) == 3


def test_a_mixture_too_long_to_shuffle_is_refused():
    with pytest.raises(DataError, match="30,000,000,300 examples"):
        mix({"a": 1.0, "b": 1e8}, a=Numbers("a", 300), b=Numbers("b", 5))
    assert len(mix({"a": 1.0, "b": 1e7}, a=Numbers("a", 300), b=Numbers("b", 5))) == 300 + 3 * 10**9


@pytest.fixture
def config(digits_dir):
    return DataConfig(
        name="both",
        data_dir=str(digits_dir),
        global_batch_size=8,
        mixture={
            "early": MemberConfig(name="digits", train_split="train[:100]"),
            "late": MemberConfig(name="digits", train_split="train[100:110]", weight=0.5),
        },
    )


def test_a_config_names_datasets_and_weights(config):
    training = open_training_data(config)
    assert training.manifest is None
    assert len(training.source) == 150
    assert training.source.name == (
        "mixture of 66.7% digits/1.0.0 train[:100], 33.3% digits/1.0.0 train[100:110]"
    )
    assert training.source.class_names == tuple("0123456789")
    # The five repeats of the ten late ones.
    assert training.source[149].image == training.source[109].image == training.source[139].image


def test_members_may_be_given_on_the_command_line(digits_dir):
    overrides = [
        "data.mixture.a.name=digits",
        "data.mixture.b.name=digits",
        "data.mixture.b.weight=2",
        f"data.data_dir={digits_dir}",
    ]
    config = load_config(UNMIXED, overrides)
    assert config.data.mixture["b"] == MemberConfig(name="digits", weight=2.0)
    assert len(open_training_data(config.data).source) == 3 * 1437


@pytest.mark.parametrize(
    ("member", "fix"),
    [
        ({"weight": 2.0}, "data.mixture.a.name"),
        ({"name": "x", "wieght": 2.0}, "did you mean 'data.mixture.a.weight'?"),
    ],
)
def test_an_error_in_a_member_names_its_whole_key(member, fix):
    with pytest.raises(ConfigError, match=re.escape(fix)):
        Config.from_mapping(
            {
                "model": {"name": "ViT-Ti/4"},
                "optimizer": {"learning_rate": 0.1},
                "data": {"name": "m", "global_batch_size": 1, "mixture": {"a": member}},
            }
        )


def test_evaluation_reads_all_members_once_or_one_of_them(config):
    both, late = open_source(config, "test"), open_source(config, "late:test[:7]")
    assert (len(both), len(late)) == (720, 7)
    assert both.class_names == late.class_names
    assert [e.image for e in both.read([0, 6])] == [e.image for e in late.read([0, 6])]
    with pytest.raises(DataError, match="did you mean 'late:test'"):
        open_source(config, "lat:test")


def test_a_member_of_a_mixture_keeps_the_labels_that_it_has_there():
    from vit_jax.data.sources.mixture import MixtureMember

    members = {"a": Numbers("a", 2), "b": Numbers("b", 3, ("p", "q", "r"))}
    member = MixtureMember(members, "b")
    assert [e.label for e in member.read(range(3))] == [2, 3, 4]
    assert member.class_names == ("a/x", "a/y", "b/p", "b/q", "b/r")
    assert len(member) == 3


def test_a_subset_of_a_mixture_is_refused():
    member = {"a": {"name": "digits"}}
    with pytest.raises(ConfigError, match="'subset' given with a 'mixture'"):
        DataConfig.from_mapping(
            {"name": "m", "global_batch_size": 1, "mixture": member, "subset": {"fraction": 0.1}}
        )
