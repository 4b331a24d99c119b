"""The notebooks run from the first cell to the last, in a folder of their own."""

import json
import os
from pathlib import Path

import pytest
from docs.test_pages import put_stand_ins

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


def test_notebooks_are_kept_without_output_and_install_in_their_first_cell():
    assert len(NOTEBOOKS) == 5
    for path in NOTEBOOKS:
        cells = [c for c in json.loads(path.read_text())["cells"] if c["cell_type"] == "code"]
        assert "%pip install" in "".join(cells[0]["source"])
        assert not any(cell["outputs"] or cell["execution_count"] for cell in cells), path


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path, tmp_path, monkeypatch):
    # Install them yourself (pip install nbclient ipykernel): IPython slows down every start.
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    put_stand_ins(tmp_path)
    monkeypatch.setenv("WEIGHTS", str(tmp_path / "B_16.npz"))
    monkeypatch.setenv("SHORT", "1")  # No slice of a TPU is planned.
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("MPLBACKEND", "module://matplotlib_inline.backend_inline")
    notebook = nbformat.read(path, 4)
    nbclient.NotebookClient(
        notebook, timeout=900, resources={"metadata": {"path": tmp_path}}
    ).execute()
    kinds = {output.get("data", {}).keys() >= {"image/png"} for cell in notebook.cells
             if cell.cell_type == "code" for output in cell.outputs}  # fmt: skip
    assert True in kinds or path.stem in ("own_loop", "plan_a_pod")
    if folder := os.environ.get("KEEP_NOTEBOOKS"):  # To look at them.
        nbformat.write(notebook, Path(folder) / path.name)
