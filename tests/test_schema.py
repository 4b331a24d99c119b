import math
from typing import Any, Literal

import pydantic
import pytest

from vit_jax.config.run import Config
from vit_jax.errors import ConfigError
from vit_jax.schema import Section, differences, option, parse_override, section


class Wheel(Section):
    """A nested section."""

    radius: float = option(0.3, above=0, at_most=1)
    spokes: int = option(32, at_least=3, below=100)
    colour: Literal["red", "blue"] = option("red")


class Bicycle(Section):
    """One field of every kind."""

    name: str = option()
    wheel: Wheel = section(Wheel)
    spare: Wheel | None = section(lambda: None)
    bell: bool = option(True)
    gears: int | None = option(None, at_least=1)
    sizes: tuple[int, ...] = option((1, 2))
    rules: tuple[tuple[str, bool], ...] = option((("a", True),))
    extras: dict[str, Any] = option({})
    weights: dict[str, float] = option({})
    others: dict[str, Wheel] = option({})
    place: str = option("shed", changes_result=False)
    insurance: Wheel = section(Wheel, changes_result=False)


_WHEEL = "a section with the keys colour, radius, spokes"


def make(**values: Any) -> Bicycle:
    return Bicycle.from_mapping({"name": "b", **values})


def test_absent_keys_take_their_defaults():
    made = make()
    assert made.wheel == Wheel(radius=0.3, spokes=32, colour="red")
    assert made.spare is None
    assert made.sizes == (1, 2)
    made.extras["x"] = 1
    assert make().extras == {}  # A default dict is not shared.


def test_a_section_is_frozen():
    with pytest.raises(pydantic.ValidationError, match="frozen"):
        make().bell = False


_WRONG_KEYS = [
    ({"wheels": {}}, "unknown config key 'wheels'", "did you mean 'wheel'?"),
    ({"wheel": {"spoke": 3}}, "unknown config key 'wheel.spoke'", "did you mean 'wheel.spokes'?"),
    ({"wheel": {"Color": 3}}, "unknown config key 'wheel.Color'", "did you mean 'wheel.colour'?"),
    ({"spare": {"raduis": 1}}, "unknown config key 'spare.raduis'", "did you mean 'spare.radius'?"),
    ({"others": {"a": {"radii": 1}}}, "unknown config key 'others.a.radii'", "'others.a.radius'?"),
]


@pytest.mark.parametrize(("mapping", "got", "fix"), _WRONG_KEYS)
def test_an_unknown_key_is_named_whole_with_the_nearest(mapping, got, fix):
    with pytest.raises(ConfigError) as caught:
        make(**mapping)
    assert caught.value.got == got
    assert fix in caught.value.fix


def test_the_errors_for_unknown_and_missing_keys_say_what_is_possible():
    with pytest.raises(ConfigError) as caught:
        make(wheel={"x": 1})
    assert caught.value.expected == "one of colour, radius, spokes"
    with pytest.raises(ConfigError, match=r"no 'name' in the config; expected a string; .*=VALUE"):
        Bicycle.from_mapping({})


@pytest.mark.parametrize(
    ("mapping", "got", "expected"),
    [
        ({"name": None}, "'name' is None (NoneType)", "a string"),
        ({"bell": 1}, "'bell' is 1 (int)", "true or false"),
        ({"bell": "true"}, "'bell' is 'true' (str)", "true or false"),
        ({"gears": True}, "'gears' is True (bool)", "a whole number or none"),
        ({"gears": 2.0}, "'gears' is 2.0 (float)", "a whole number or none"),
        ({"sizes": 3}, "'sizes' is 3 (int)", "a list, each item a whole number"),
        ({"sizes": [1, "x"]}, "'sizes' is 'x' (str)", "a whole number"),
        ({"rules": [["a"]]}, "'rules' is ['a'] (list)", "a list of 2: a string, true or false"),
        ({"rules": [["a", 1]]}, "'rules' is 1 (int)", "true or false"),
        ({"extras": [1]}, "'extras' is [1] (list)", "keys and values"),
        ({"weights": {"a": "x"}}, "'weights.a' is 'x' (str)", "a number"),
        ({"weights": {"a": math.nan}}, "'weights.a' is nan (float)", "a number"),
        ({"wheel": None}, "'wheel' is None (NoneType)", _WHEEL),
        ({"others": {"a": 3}}, "'others.a' is 3 (int)", _WHEEL),
        ({"wheel": {"radius": True}}, "'wheel.radius' is True (bool)", "a number"),
        ({"wheel": {"radius": -math.inf}}, "'wheel.radius' is -inf (float)", "a number"),
        ({"wheel": {"colour": "green"}}, "'wheel.colour' is 'green' (str)", "one of red, blue"),
        ({"wheel": {"colour": ["red"]}}, "'wheel.colour' is ['red'] (list)", "one of red, blue"),
    ],
)
def test_wrong_type_names_key_value_and_expected_type(mapping, got, expected):
    with pytest.raises(ConfigError) as caught:
        make(**mapping)
    assert caught.value.got == got
    assert caught.value.expected.startswith(expected)


@pytest.mark.parametrize(
    ("key", "allowed", "refused"),
    [("radius", [1e-9, 1, 1.0], [0, -1.0, 1.001, 10**400]), ("spokes", [3, 99], [2, 100, 10**400])],
)
def test_the_ends_of_a_range_are_included_or_excluded_as_declared(key, allowed, refused):
    for value in allowed:
        assert getattr(make(wheel={key: value}).wheel, key) == value
    for value in refused:
        with pytest.raises(ConfigError) as caught:
            make(wheel={key: value})
        assert caught.value.got.startswith(f"'wheel.{key}' is {value!r}")


def test_the_range_error_gives_both_ends_with_all_digits_of_whole_numbers():
    class Limits(Section):
        steps: int = option(1, at_least=1, below=2**31)
        share: float = option(0.1, above=0, at_most=1 / 3)

    for key, value, expected in (
        ("steps", 2**31, "a value at least 1 and below 2147483648"),
        ("share", 1.0, "a value above 0 and at most 0.333333"),
    ):
        with pytest.raises(ConfigError) as caught:
            Limits.from_mapping({key: value})
        assert caught.value.expected == expected
    with pytest.raises(ConfigError, match=r"'share' is 2;"):
        Limits(share=2)  # Also for sections made in Python.


def test_whole_numbers_become_floats_and_lists_tuples():
    made = make(wheel={"radius": 1}, sizes=[4, 5, 6], rules=[["x", False]], weights={"a": 1})
    assert (made.wheel.radius, type(made.wheel.radius)) == (1.0, float)
    assert made.sizes == (4, 5, 6)
    assert made.rules == (("x", False),)
    assert type(made.weights["a"]) is float


def test_a_section_survives_the_round_trip_through_a_mapping():
    made = make(
        wheel={"radius": 0.5},
        spare={},
        gears=3,
        sizes=[7],
        rules=[["x", True], ["y", False]],
        extras={"b2": 0.9, "pair": (1, 2)},
        weights={"a": 2},
        others={"a": {"radius": 0.5}, "b": {}},
        place="garden",
    )
    assert made.others == {"a": Wheel(radius=0.5), "b": Wheel()}
    assert made.extras["pair"] == [1, 2]
    mapping = made.to_mapping()
    assert mapping["wheel"] == {"radius": 0.5, "spokes": 32, "colour": "red"}
    assert mapping["rules"] == [["x", True], ["y", False]]
    assert Bicycle.from_mapping(mapping) == made


def test_differences_are_dotted_keys_with_both_values():
    one = make(wheel={"spokes": 20}, extras={"a": 1})
    other = make(wheel={"spokes": 24}, extras={"a": 2}, name="c")
    assert differences(one, other) == [
        ("name", "b", "c"),
        ("wheel.spokes", 20, 24),
        ("extras", {"a": 1}, {"a": 2}),
    ]
    assert differences(make(spare=None), make(spare={})) == [("spare", None, Wheel())]


def test_differences_skip_fields_that_do_not_change_the_result():
    one, other = make(), make(place="garden", insurance={"spokes": 5})
    assert differences(one, other) == []


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("name", "3", "3"),
        ("name", "none", "none"),
        ("bell", "False", False),
        ("gears", "7", 7),
        ("gears", "None", None),
        ("wheel.radius", "1e-1", 0.1),
        ("spare", "none", None),
        ("sizes", "(3, 4)", (3, 4)),
        ("sizes", "()", ()),
        ("rules", "[('.*', False)]", ((".*", False),)),
        ("extras.b2", "0.99", 0.99),
        ("extras.nesterov", "true", True),
        ("extras.clip", "none", None),
        ("extras.kind", "word", "word"),
        ("extras", "{'a': 1}", {"a": 1}),
        ("weights.a", "2", 2.0),
        ("gears", "1e3", 1000),
        ("gears", "2.1E1", 21),
        ("weights.a", "1e3", 1000.0),
        ("wheel", "{'spokes': 1e2, 'radius': 2.5e-1}", {"spokes": 100, "radius": 0.25}),
        ("sizes", "(3e1, 4)", (30, 4)),
        ("extras", "{'1e3': \"2e3\", 'a': 1.5e1}", {"1e3": "2e3", "a": 15}),
        ("extras.steps", "1e3", 1000.0),
    ],
)
def test_override_text_is_read_by_the_type_of_its_field(key, text, value):
    parsed = parse_override(Bicycle, key, text)
    assert parsed == value
    assert type(parsed) is type(value)


@pytest.mark.parametrize(
    ("key", "text", "got", "fix"),
    [
        ("wheel.spoks", "3", "unknown config key 'wheel.spoks'", "did you mean 'wheel.spokes'?"),
        ("wheel.spokes.x", "3", "unknown config key 'wheel.spokes.x'", "remove '.x'"),
        ("gears", "3.5", "'gears' is 3.5 (float)", None),
        ("bell", "yes", "'bell' is 'yes' (str)", None),
        ("wheel.radius", "nan", "'wheel.radius' is 'nan' (str)", None),
        ("wheel.radius", "1e999", "'wheel.radius' is inf (float)", None),
        ("wheel", "3", "'wheel' is 3 (int)", None),
        ("weights.a", "x", "'weights.a' is 'x' (str)", None),
        ("sizes", "(1, 2", "'sizes' is '(1, 2' (str)", None),
        ("wheel.spokes", "", "'wheel.spokes' is '' (str)", None),
        ("", "3", "unknown config key ''", None),
    ],
)  # fmt: skip
def test_override_that_does_not_fit_names_the_whole_key(key, text, got, fix):
    with pytest.raises(ConfigError) as caught:
        parse_override(Bicycle, key, text)
    assert caught.value.got == got
    if fix is not None:
        assert caught.value.fix == fix


@pytest.mark.parametrize(
    ("text", "value"),
    [("true", True), ("False", False), ("-3", -3), ("FAST_DOT", "FAST_DOT"), ("1e3", "1e3")],
)
def test_an_override_of_a_union_type_is_read_by_its_form(text, value):
    got = parse_override(Config, "compiler_options.xla_flag", text)
    assert got == value
    assert type(got) is type(value)


def test_sections_of_a_dict_are_compared_field_by_field():
    one = make(others={"a": {"radius": 0.5}, "b": {}})
    other = make(others={"b": {}, "a": {"radius": 0.25}})
    assert differences(one, other) == [("others.a.radius", 0.5, 0.25)]
    ((key, _, _),) = differences(one, make(others={"a": {"radius": 0.5}}))
    assert key == "others"


def test_an_override_may_set_a_field_of_a_section_in_a_dict():
    assert parse_override(Bicycle, "others.a.spokes", "40") == 40
    assert parse_override(Bicycle, "others.a", "{'spokes': 5}") == {"spokes": 5}
    assert parse_override(Bicycle, "others", '{"a": {"spokes": null}}') == {"a": {"spokes": None}}
    with pytest.raises(ConfigError, match=r"key 'others\.a\.spoke'; .* mean 'others\.a\.spokes'"):
        parse_override(Bicycle, "others.a.spoke", "40")
