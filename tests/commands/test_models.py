import re

import pytest
from processes import user_error

from vit_jax.__main__ import main
from vit_jax.models import registry


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
    figures = ["224", "197", "86.6 M", "17.56", "35.13", "139.8 MB"]
    assert row(lines, "ViT-B/16")[1:] == figures
    assert row(lines, "ViT-Mini/4")[1:4] == ["32", "65", "1.5 M"]
    assert row(lines, "BiT-R26x1")[1:3] == ["224", "-"]
    assert row(lines, "Mixer-S/32")[1:4] == ["224", "49", "19.1 M"]


def test_named_models_are_listed_with_options(show):
    options = ["--num_classes=10", "--dtype=bfloat16", "--model.num_registers=2"]
    lines = show("ViT-Ti/15", "R+ViT-Mini/4", "--image_size=50", *options)
    assert lines[0] == "2 models, 10 classes, bfloat16"
    assert row(lines, "ViT-Ti/15")[1:3] == ["60", str(16 + 3)]
    assert row(lines, "R+ViT-Mini/4")[1:3] == ["52", str(13**2 + 3)]


def test_one_vit_is_shown_in_detail(show):
    lines = show("ViT-B/16")
    assert lines[0] == "ViT-B/16 at 224 x 224 px, 1,000 classes, float32"
    assert row(lines, "heads") == ["heads", "12", "of 64 features"]
    assert row(lines, "grid") == ["grid", "14 x 14", "stride 16 px"]
    assert row(lines, "tokens") == ["tokens", "197", "class token + 196 patches"]
    assert row(lines, "parameters") == ["parameters", "86,567,656"]
    assert row(lines, "GFLOPs")[1] == "35.13"
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
    convolution = ["5,309,184", "1,040,449,536", "1", "13"]
    assert row(lines, "convolution, 3x3 on the grid")[1:] == convolution
    assert row(lines, "recurrence (tanh RNN)")[1:] == ["1,180,416", "232,390,656", "197", "197"]


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["ViT-B/16", "BiT-R50"], "did you mean 'BiT-R50x1'?"),
        (["ViT-B/16", "--image_size=23"], "23x23 with patch size 16; expected a multiple of 16;"),
        (["BiT-R50x1", "--complexity"], "a ViT or a hybrid; e.g. ViT-B/16"),
        (["Mixer-B/16", "--complexity"], "Mixer-B/16, which has no self-attention; expected "),
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
def test_a_wrong_argument_is_a_one_line_error(capsys, arguments, part):
    assert part in user_error(capsys, ["models", *arguments])
