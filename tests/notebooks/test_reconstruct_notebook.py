"""The notebook runs clean, and what it shows is what it gives."""

import copy
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

FOLDER = Path(__file__).parents[2] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))


def _shown(cell: nbformat.NotebookNode) -> list[tuple[str, str | None, bool]]:
    """Kind, text and whether there is a picture, of each output of a cell."""
    shown = []
    for output in cell.outputs:
        data = output.get("data", {})
        shown.append((output.output_type, output.get("text", data.get("text/plain")), "image/png" in data))
    return shown


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_clean_and_its_kept_outputs_are_those_of_the_run(path: Path):
    kept = nbformat.read(path, as_version=4)
    run = copy.deepcopy(kept)
    for cell in run.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    NotebookClient(run, timeout=300, resources={"metadata": {"path": str(FOLDER)}}).execute()
    pictures = 0
    for before, after in zip(kept.cells, run.cells, strict=True):
        if after.cell_type == "code":
            assert all(output.get("name") != "stderr" for output in after.outputs), after.outputs
            assert _shown(after) == _shown(before), after.source
            pictures += sum(has_picture for _, _, has_picture in _shown(after))
    assert pictures >= 3


def test_there_is_a_notebook_and_each_is_small():
    assert NOTEBOOKS
    assert all(path.stat().st_size < 400_000 for path in NOTEBOOKS)
