"""Where code from outside the package is found, and that nothing else is imported."""

import json
import sys
import types

import pytest
from own_code import own_code  # noqa: F401
from small_config import small_mapping

from vit_jax import plugins
from vit_jax.__main__ import main
from vit_jax.config.file import load_config
from vit_jax.config.run import Config
from vit_jax.errors import ConfigError, PluginError, UserError
from vit_jax.losses import LOSSES, loss_class
from vit_jax.plugins import load_plugins, missing_modules
from vit_jax.run.environment import differences
from vit_jax.run.folder import read_config
from vit_jax.run.own_code import own_code as own_code_of

pytestmark = pytest.mark.usefixtures("own_code")

LOSS = """
import vit_jax

@vit_jax.register_loss
def {name}(logits, targets, *, strength: float = 1.0):
    return -strength * (logits * targets).sum(-1)
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    """The current folder: empty, and on the path of modules as for `python -m`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setattr(plugins, "_passed", [])
    monkeypatch.setattr(plugins, "_installed_is_loaded", False)
    before = {*sys.modules}
    yield tmp_path
    for name in {*sys.modules} - before:
        if getattr(sys.modules[name], "__file__", None) and str(tmp_path) in str(
            sys.modules[name].__file__
        ):
            del sys.modules[name]


def install(folder, package, source, entry=None):
    """Writes a package and its metadata into a folder, as pip does."""
    (folder / package).mkdir(parents=True)
    (folder / package / "__init__.py").write_text(source)
    metadata = folder / f"{package}-1.2.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.2\n")
    (metadata / "top_level.txt").write_text(f"{package}\n")
    (metadata / "entry_points.txt").write_text(f"[vit_jax]\n{package} = {entry or package}\n")


def test_a_plugin_is_imported_before_the_command(here, capsys, monkeypatch):
    (here / "with_flag.py").write_text(LOSS.format(name="flagged"))
    (here / "with_variable.py").write_text(LOSS.format(name="variable"))
    (here / "a_file.py").write_text(LOSS.format(name="from_file"))
    monkeypatch.setenv("VIT_JAX_PLUGINS", "with_variable")
    flags = ["--plugin=with_flag", "--plugin=a_file.py"]
    assert main(["config", "loss.strength", *flags]) == 0
    assert "loss.strength = 1.0" in capsys.readouterr().out
    assert {"flagged", "variable", "from_file"} <= {*LOSSES}
    assert plugins.passed_plugins() == ("with_variable", "with_flag", "a_file.py")
    assert LOSSES.owner("from_file") == str(here / "a_file.py")
    assert main(["config", "loss.strength", *flags]) == 0  # Again, in the same process.


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("\n1 / 0\n", r"plugin bad \(.*bad.py, line 2\): ZeroDivisionError: division by zero;"),
        ("x = (\n", r"plugin bad \(.*bad.py, line 1\): SyntaxError"),
        ("import not_there_at_all\n", r"plugin bad \(.*line 1\): ModuleNotFoundError.*not_there"),
        ("raise SystemExit(3)\n", r"plugin bad \(.*line 1\): SystemExit: 3"),
        (None, "no module 'bad'; expected a module of the current folder or of an installed"),
    ],
)
def test_a_plugin_that_fails_is_one_line(here, source, words):
    if source is not None:
        (here / "bad.py").write_text(source)
    with pytest.raises(PluginError, match=words) as caught:
        plugins.load_plugins(["bad"])
    assert "\n" not in str(caught.value)
    assert main(["--plugin"]) == 2


def test_a_folder_that_is_no_package_is_no_plugin(here):
    (here / "bad").mkdir()
    with pytest.raises(
        PluginError, match=r"bad is a folder without __init__.py; expected a module"
    ):
        plugins.load_plugins(["bad"])


def test_an_installed_plugin_is_loaded_when_a_name_is_unknown(here, caplog, monkeypatch):
    site = here / "site"
    install(site, "ours_installed", LOSS.format(name="installed"))
    install(site, "ours_broken", "raise OSError('no disk')")
    monkeypatch.setattr(sys, "path", [*sys.path, str(site)])
    assert loss_class({"name": "softmax_cross_entropy"}).kind == "softmax cross-entropy"
    assert "ours_installed" not in sys.modules  # It costs nothing until then.
    config = Config.from_mapping(small_mapping(loss__name="installed", loss__strength=2))
    assert config.to_mapping()["loss"]["strength"] == 2.0
    (line,) = caplog.messages
    assert line.startswith("plugin ours_broken of an installed package (")
    assert "line 1): OSError: no disk; expected a module that can be imported" in line
    assert own_code_of(config) == ["ours_installed"]
    described = plugins.describe_plugins(own_code_of(config))
    assert described["ours_installed"]["version"] == "1.2"
    with pytest.raises(ConfigError, match=r"'loss.name' is 'zzz'.*add --plugin=MODULE"):
        Config.from_mapping(small_mapping(loss__name="zzz"))


def test_an_unknown_key_or_model_loads_installed_plugins_too(here, monkeypatch):
    site = here / "site"
    install(
        site,
        "ours_noise",
        "import vit_jax\n"
        "@vit_jax.register_augmentation(stage='device')\n"
        "def hiss(images, key, *, level: float = 0.1):\n"
        "    return images\n"
        "@vit_jax.register_hook\n"
        "def notify(step, state, metrics): ...\n",
    )
    monkeypatch.setattr(sys, "path", [*sys.path, str(site)])
    (here / "recipe.py").write_text(f"def get_config():\n    return {small_mapping()!r}\n")
    overrides = ["data.augment.hiss.level=0.5", "hooks.notify.every_steps=7"]
    config = load_config("recipe.py", overrides)
    assert config.data.augment.operations("device")["hiss"].level == 0.5
    assert config.hooks.on["notify"].every_steps == 7
    assert own_code_of(config) == ["ours_noise"]


def test_a_hash_of_the_sources_tells_that_code_has_changed(here):
    (here / "ours").mkdir()
    (here / "ours" / "__init__.py").write_text("")
    (here / "ours" / "losses.py").write_text(LOSS.format(name="hashed"))
    plugins.load_plugins(["ours.losses"])
    before = plugins.describe_plugins(["ours.losses", "ours.losses"])
    assert [*before] == ["ours"]
    assert before["ours"]["modules"] == ["ours.losses"]
    assert before == plugins.describe_plugins(["ours.losses"])
    (here / "ours" / "other.py").write_text("x = 1\n")
    after = plugins.describe_plugins(["ours.losses"])
    code = {"sources": "s", "git_revision": None, "python": "3.13.0", "packages": {}}
    (row,) = differences({**code, "plugins": before}, {**code, "plugins": after})
    assert row == f"ours {before['ours']['sources']} -> {after['ours']['sources']}"


def write_run(folder, module, **keys):
    """A run folder that may come from other people."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(small_mapping(**keys)))
    line = {"plugins": {module: {"version": None, "sources": "x", "modules": [module]}}}
    (folder / "environments.jsonl").write_text(json.dumps(line) + "\n")


@pytest.mark.parametrize(
    "keys",
    [
        {"loss__name": "harmful", "loss__strength": 2.0},
        {"optimizer__name": "harmful"},
        {"data__augment__crop__name": "harmful"},
        {"data__augment__harmful__level": 1},
        {"hooks__harmful__every_steps": 1},
        {"task__name": "harmful"},
        {"model__name": "harmful"},
    ],
)
def test_nothing_that_a_run_folder_names_is_imported(here, keys):
    """The run folder is the current folder and holds the module, and metadata that name it."""
    done = here / "done"
    install(here, "harmful", f"open({str(done)!r}, 'w')")
    write_run(here, "harmful", **keys)
    for read in (lambda: load_config("config.json"), lambda: read_config(here)):
        if "optimizer__name" in keys:  # Checked when the optimizer is built.
            read()
            continue
        with pytest.raises(UserError, match="harmful"):
            read()
    assert main(["train", "--config=config.json", f"--workdir={here / 'run'}"]) == 2
    assert not done.exists()
    assert "harmful" not in sys.modules


def test_a_run_whose_module_is_not_there_says_which_and_how_to_pass_it(here, capsys):
    write_run(here / "run", "ours.losses", loss__name="far_away")
    with pytest.raises(PluginError) as caught:
        load_config(str(here / "run" / "config.json"))
    text = str(caught.value)
    assert f"{here / 'run'} uses code that is not loaded: 'loss.name' is" in text
    assert "expected the code of ours.losses" in text
    assert "add --plugin=ours.losses if you trust it, or in Python import it first" in text
    (here / "ours").mkdir()
    (here / "ours" / "__init__.py").write_text("")
    (here / "ours" / "losses.py").write_text(LOSS.format(name="far_away"))
    command = ["config", "loss", f"--config={here / 'run'}", "--values"]
    assert main(command) == 2
    assert "--plugin=ours.losses" in capsys.readouterr().err
    assert main([*command, "--plugin=ours.losses"]) == 0
    assert 'loss.name = "far_away"' in capsys.readouterr().out


def test_several_modules_of_one_package_are_loaded_by_its_name(here):
    modules = ["ours.losses", "ours.models", "theirs.data"]
    line = {"plugins": {"ours": {"version": None, "sources": "x", "modules": modules}}}
    (here / "environments.jsonl").write_text(json.dumps(line) + "\n")
    assert missing_modules(here) == ["ours", "theirs.data"]


def test_code_that_has_changed_since_a_run_is_named_once(here, caplog):
    (here / "ours.py").write_text(LOSS.format(name="near"))
    load_plugins(["ours"])
    write_run(here / "run", "ours", loss__name="near")
    for _ in range(2):
        read_config(here / "run")
    assert caplog.messages == [
        f"{here / 'run'}: the code of ours has changed since the run's last session"
    ]


def test_an_error_below_a_recipe_names_the_line_of_the_module(here):
    (here / "ours.py").write_text("\n1 / 0\n")
    (here / "recipe.py").write_text("import ours\n")
    with pytest.raises(ConfigError, match=r"ours.py, line 2: ZeroDivisionError.*; fix that line$"):
        load_config("recipe.py")
    (here / "recipe.py").write_text("def get_config(arg):\n    return int(arg)\n")
    with pytest.raises(ConfigError, match=r"recipe.py, line 2: ValueError.*after ':' in --config"):
        load_config("recipe.py:x")


def test_text_of_a_run_folder_that_is_no_module_is_not_shown(here):
    write_run(here / "run", "os; rm -rf", loss__name="zzz")
    with pytest.raises(ConfigError) as caught:
        load_config(str(here / "run" / "config.json"))
    assert "rm -rf" not in str(caught.value)


def test_the_current_folder_is_on_the_path_as_for_python_m(here, monkeypatch):
    (here / "beside.py").write_text("")
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p != str(here)])
    plugins.load_plugins(["beside"])
    assert sys.path[0] == str(here)


CELLS = '''
import vit_jax

@vit_jax.register_loss
def cell(logits, targets, *, strength: float = 1.0):
    return -SCALE * factor(strength) * (logits * targets).sum(-1)

SCALE = {scale}

def factor(x, function=object(), *, names=("a", "b")):
    return x + {more} + (names[0] in {{"a", "b", "c"}}) + Half()(x)

class Half:
    """{doc}"""

    def __call__(self, x):
        return x * {half}
'''


def cells(scale=1, more=0, half=0.5, doc="Half."):
    return CELLS.format(scale=scale, more=more, half=half, doc=doc)


def test_an_edited_function_of_a_notebook_is_changed_code(monkeypatch):
    notebook = types.ModuleType("notebook")  # Without a file.
    monkeypatch.setitem(sys.modules, "notebook", notebook)

    def hash_of(text):
        exec(compile(text, "<cell>", "exec"), vars(notebook))
        return plugins.describe_plugins(["notebook"])["notebook"]["sources"]

    first = hash_of(cells())
    assert first is not None
    assert hash_of("x = 1\n" + cells(doc="Half of it.") + "def unused(): ...") == first
    edited = {hash_of(cells(scale=2)), hash_of(cells(more=1)), hash_of(cells(half=0.25))}
    assert len(edited | {first}) == 4
