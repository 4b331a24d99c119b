import logging
import re

import pytest

from vit_jax.__main__ import main
from vit_jax.models import registry
from vit_jax.models.registry import list_models


@pytest.fixture(autouse=True)
def _logging_as_before():
    levels = {name: logging.getLogger(name).level for name in ("vit_jax", "absl", "asyncio")}
    yield
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)


@pytest.fixture
def show(capsys):
    """Runs the command and returns the lines of its screen."""

    def run(*arguments):
        assert main(["models", *arguments]) == 0
        captured = capsys.readouterr()
        assert captured.err == ""
        lines = [line.rstrip() for line in captured.out.splitlines()]
        assert max(map(len, lines)) <= 100
        assert "…" not in captured.out
        return lines

    return run


@pytest.fixture
def fail(capsys):
    """Runs a command that must fail as a user error does, and returns its one line."""

    def run(*arguments):
        assert main(["models", *arguments]) == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        (line,) = captured.err.splitlines()
        return line.removeprefix("error: ")

    return run


def row(lines, name):
    """The cells of the one row that begins with `name`."""
    (line,) = (line for line in lines if re.match(rf" *{re.escape(name)}  ", line))
    return re.split(r" {2,}", line.strip())


def few(monkeypatch, *names):
    monkeypatch.setattr(registry, "list_models", lambda: list(names))


def test_the_table_of_models_has_their_figures(show, monkeypatch):
    few(monkeypatch, "ViT-B/16", "ViT-Mini/4", "BiT-R26x1", "Mixer-S/32")
    lines = show()
    assert lines[0] == "4 models, 1,000 classes, float32"
    assert row(lines, "ViT-B/16") == [
        "ViT-B/16",
        "224",
        "197",
        "86.6 M",
        "17.56",
        "35.13",
        "139.8 MB",
    ]
    assert row(lines, "ViT-Mini/4")[:4] == ["ViT-Mini/4", "32", "65", "1.5 M"]
    assert row(lines, "BiT-R26x1")[1:3] == ["224", "-"]
    assert row(lines, "Mixer-S/32")[1:4] == ["224", "49", "19.1 M"]
    assert "1 GMAC = 1e9 multiply-accumulates = 2 GFLOPs" in " ".join(lines)


def test_a_narrow_terminal_truncates_nothing(show, monkeypatch):
    few(monkeypatch, "ViT-G/8")
    monkeypatch.setenv("COLUMNS", "40")
    assert row(show(), "ViT-G/8") == [
        "ViT-G/8",
        "224",
        "785",
        "1,844.7 M",
        "1,543.29",
        "3,086.57",
        "6,375.3 MB",
    ]


@pytest.mark.slow
def test_every_registered_model_is_shown(show):
    lines = show()
    for name in list_models():
        assert len(row(lines, name)) == 7


def test_named_models_are_listed_with_options(show):
    lines = show(
        "ViT-Ti/15",
        "R+ViT-Mini/4",
        "--image_size=50",
        "--num_classes=10",
        "--dtype=bfloat16",
        "--model.num_registers=2",
    )
    assert lines[0] == "2 models, 10 classes, bfloat16"
    assert row(lines, "ViT-Ti/15")[1:3] == ["60", str(16 + 3)]
    assert row(lines, "R+ViT-Mini/4")[1:3] == ["52", str(13**2 + 3)]


@pytest.mark.parametrize(
    ("arguments", "size", "fix"),
    [
        (["ViT-B/16", "--image_size=7"], "7x7", "use e.g. 16x16, or"),
        (["ViT-B/16", "--image_size=23"], "23x23", "use e.g. 16x16 or 32x32, or"),
        (["ViT-B/16", "ViT-B/8", "--image_size=8"], "8x8", "use e.g. 16x16, or"),
    ],
)
def test_an_image_size_that_the_model_cannot_have_is_refused(capsys, arguments, size, fix):
    assert main(["models", *arguments]) == 2
    error = capsys.readouterr().err
    assert f"image size {size} with patch size 16; expected a multiple of 16; {fix}" in error


def test_one_vit_is_shown_in_detail(show):
    lines = show("ViT-B/16")
    assert lines[0] == "ViT-B/16 at 224 x 224 px, 1,000 classes, float32"
    assert row(lines, "heads") == ["heads", "12", "of 64 features"]
    assert row(lines, "grid") == ["grid", "14 x 14", "stride 16 px"]
    assert row(lines, "tokens") == ["tokens", "197", "class token + 196 patches"]
    assert row(lines, "encoder") == ["encoder", "85,054,464", "98.3%"]
    assert row(lines, "parameters") == ["parameters", "86,567,656"]
    assert row(lines, "GMACs") == ["GMACs", "17.56"]
    assert row(lines, "GFLOPs") == ["GFLOPs", "35.13", "2 x GMACs"]
    assert row(lines, "activations") == ["activations", "139.8 MB", "per image"]
    assert row(lines, "attention weights") == ["attention weights", "22.4 MB", "16.0% of them"]


def test_a_hybrid_and_a_resnet_are_shown_in_detail(show):
    lines = show("R+ViT-Mini/4", "--model.pooling=gap", "--model.num_registers=1")
    assert row(lines, "stem units") == ["stem units", "2", "1 + 1"]
    assert row(lines, "patch size") == ["patch size", "2", "on the stem's map"]
    assert row(lines, "tokens") == ["tokens", "65", "1 register + 64 patches"]
    lines = show("BiT-R-Mini")
    assert row(lines, "units") == ["units", "4", "1 + 1 + 2"]
    assert row(lines, "last feature map") == ["last feature map", "8 x 8", "512 channels, stride 4"]
    assert not any("attention weights" in line for line in lines if line.startswith("  "))


def test_models_without_an_option_are_left_out_of_the_list(show, monkeypatch):
    few(monkeypatch, "ViT-Ti/16", "BiT-R50x1", "BiT-R50x2")
    lines = show("--model.num_registers=0")
    assert lines[0] == "1 model, 1,000 classes, float32"
    assert row(lines, "ViT-Ti/16")[2] == "197"
    assert lines[-1] == "Left out: 2 models without these options."


def test_complexity_prints_a_table_of_layers(show):
    lines = show("--complexity")
    assert lines[0] == (
        "One layer of ViT-B/16 at 224 px: N = 197 tokens, G = 196 of them patches, D = 768, K = 3"
    )
    assert row(lines, "self-attention")[1:] == ["2,362,368", "524,391,936", "1", "1"]
    assert row(lines, "convolution, 3x3 on the grid")[1:] == [
        "5,309,184",
        "1,040,449,536",
        "1",
        "13",
    ]
    assert row(lines, "convolution, 3 in sequence")[1:] == ["1,770,240", "348,585,984", "1", "196"]
    assert row(lines, "recurrence (tanh RNN)")[1:] == ["1,180,416", "232,390,656", "197", "197"]


def test_the_formulas_that_complexity_prints_give_its_figures(show):
    lines = show("ViT-Ti/16", "--complexity", "--image_size=64")
    sizes = {"D": 192, "N": 17, "G": 16, "longer side": 4}
    titles = [i for i, line in enumerate(lines) if line.startswith("    formula")]
    assert len(titles) == 4
    for i in titles:
        figures = re.split(r" {2,}", lines[i - 1].strip())[1:]
        formulas = re.split(r" {2,}", lines[i].strip())[1:]
        for figure, formula in zip(figures, formulas, strict=True):
            assert int(figure.replace(",", "")) == evaluate(formula, sizes), formula


def evaluate(formula, sizes):
    for letter, value in sorted(sizes.items(), key=lambda item: -len(item[0])):
        formula = re.sub(rf"(?<=[0-9A-Z²]){letter}", f"*{letter}", formula)
        formula = formula.replace(letter, str(value))
    return eval(formula.replace("²", "**2"))


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["VitB16"], "unknown model 'VitB16'; expected ViT-"),
        (["ViT-B/16", "BiT-R50"], "did you mean 'BiT-R50x1'?"),
        (["BiT-R50x1", "--complexity"], "a ViT or a hybrid; e.g. ViT-B/16"),
        (["BiT-R50x1", "--model.dropout=0.1"], "unknown config key 'model.dropout' for a ResNet"),
        (["--model.width=100", "ViT-B/16"], "width 100 with 12 heads; "),
        (["--model.pooling=sum"], "'pooling' is 'sum' (str); expected one of token, "),
        (["--model.poling=gap"], "did you mean 'pooling'?"),
        (["--model.name=ViT-B/16"], "'--model.name=ViT-B/16'; expected "),
        (["--model.pooling"], "expected --model.KEY=VALUE"),
        (["--image_size=0"], "'0' is not a positive whole number"),
        (["--num_classes=-1"], "'-1' is not a whole number"),
        (["--config.seed=1"], "unknown argument '--config.seed=1'"),
    ],
)
def test_a_wrong_argument_is_a_one_line_error(fail, arguments, part):
    assert part in fail(*arguments)
