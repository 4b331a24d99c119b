"""The folder of a sweep without --workdir; tests/run/test_status.py has that of a run."""

import datetime

from processes import ROOT

from vit_jax.__main__ import main
from vit_jax.run.default_folder import default_sweep_folder


def test_a_sweep_continues_in_its_newest_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = str(ROOT / "configs" / "quickstart.py")
    (tmp_path / "mine.py").write_text(f"def get_sweep():\n    yield {config!r}, {{}}\n")
    folder = default_sweep_folder("mine.py")
    assert folder.name == f"mine-{datetime.date.today().isoformat()}"
    for _ in range(2):
        assert main(["sweep", "--sweep=mine.py", "--executor=commands"]) == 0
        assert [path.name for path in (tmp_path / "runs").iterdir()] == [folder.name]
    assert default_sweep_folder("mine.py") == folder
    assert default_sweep_folder("./mine.py").name == f"{folder.name}-2"
