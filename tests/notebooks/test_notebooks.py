"""The notebooks run clean, and what they show is what they give."""

import copy
from pathlib import Path

import nbformat
import pyarrow.parquet as pq
import pytest
from nbclient import NotebookClient

from share_state.sources.discovery import find_logs
from tests.profiles import nightly
from tests.sources.formats.tables import table_of
from tests.truth import DATA

FOLDER = Path(__file__).parents[2] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
WITH_SPARK = "dataframes"
JVM_WARNING = "WARNING: Using incubator modules: jdk.incubator.vector\n"
"""Of every JVM that Spark 4.2 starts."""


def _shown(cell: nbformat.NotebookNode) -> list[tuple[str, str | None, str | None, bool]]:
    """Kind, stream, text and whether there is a picture, of each output of a cell."""
    shown = []
    for output in cell.outputs:
        if output.get("text") == JVM_WARNING:
            continue
        data = output.get("data", {})
        shown.append(
            (output.output_type, output.get("name"), output.get("text", data.get("text/plain")), "image/png" in data)
        )
    return shown


@nightly("a kernel of Jupyter for each, and Spark")
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
            shown = _shown(after)
            assert "stderr" not in {name for _, name, _, _ in shown}, after.outputs
            assert shown == _shown(before), after.source
            pictures += sum(has_picture for *_, has_picture in shown)
    assert pictures >= 3 or path.stem == WITH_SPARK


def test_the_table_of_the_notebook_with_spark_is_the_log_that_it_names():
    assert pq.read_table(FOLDER / "share_group_state.parquet").equals(table_of(find_logs([str(DATA / "4.4.0/dlq")])))


def test_there_are_notebooks_and_each_is_small():
    assert len(NOTEBOOKS) == 2
    assert all(path.stat().st_size < 400_000 for path in NOTEBOOKS)
