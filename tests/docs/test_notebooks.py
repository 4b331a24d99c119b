"""The notebooks run from the first cell to the last, in a folder of their own."""

import json
import re
import resource

import jax
import pytest
from docs.test_pages import ROOT, put_stand_ins

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


def test_notebooks_are_kept_without_output_and_install_in_their_first_cell():
    first = set()
    for path in NOTEBOOKS:
        cells = [c for c in json.loads(path.read_text())["cells"] if c["cell_type"] == "code"]
        first.add("".join(cells[0]["source"]))
        assert not any(cell["outputs"] or cell["execution_count"] for cell in cells), path
    assert len(NOTEBOOKS) == 4
    assert len(first) == 1
    for package in ("jax", "flax"):
        versions = re.findall(
            rf"^{package}==([\d.]+)", (ROOT / "requirements.lock").read_text(), re.M
        )
        assert len(versions) == 2
        assert all(f'"{version}"' in min(first) for version in versions)


@pytest.mark.slow
def test_the_loop_fine_tunes_weights_and_saves_them(tmp_path, monkeypatch):
    put_stand_ins(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WEIGHTS", "B_16.npz")
    cells = json.loads((ROOT / "notebooks/own_loop.ipynb").read_text())["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"][1:]
    assert "STEPS, BATCH = 60, 32" in code[1]
    code[1] = code[1].replace("STEPS, BATCH = 60, 32", "STEPS, BATCH = 2, 2")
    names = {}
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        for cell in code:
            exec(cell, names)  # Its last cell compares the saved model with the one in memory.
    assert names["again"].head.linear.kernel[...].any()  # The head started at zero.


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path, tmp_path, monkeypatch):
    # Not in requirements-dev.txt: IPython slows down every start.
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    put_stand_ins(tmp_path)
    monkeypatch.setenv("WEIGHTS", str(tmp_path / "B_16.npz"))
    monkeypatch.setenv("SHORT", "1")  # No slice of a TPU is planned.
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("MPLBACKEND", "module://matplotlib_inline.backend_inline")
    notebook = nbformat.read(path, 4)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    nbclient.NotebookClient(
        notebook, timeout=3600, resources={"metadata": {"path": tmp_path}}
    ).execute()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    assert seconds < 2 * 180  # Three minutes on two cores, also if other work delays them.
