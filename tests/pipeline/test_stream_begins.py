"""A stream begins anew where what it would go on from is gone, or of another form."""

from pathlib import Path

import pytest

from share_state.cli.main import run as command
from share_state.errors import WarehouseError
from share_state.pipeline.stream_changes import LogChanges
from share_state.pipeline.stream_resume import open_stream
from share_state.pipeline.stream_run import StreamRun, last_stream_run
from share_state.pipeline.stream_tables import StreamTables
from tests.pipeline.test_stream_tables import Stream
from tests.present import present
from tests.sources.formats.tables import found, table_of, write
from tests.truth import DATA


def test_a_stream_begins_anew_after_a_reconstruct(tmp_path: Path):
    """Only audits write what a fold resumes from."""
    records = table_of(found(DATA / "4.3.1/happy"))
    begin = str(write(records, tmp_path / "begin.parquet"))
    assert command(["reconstruct", begin, "--out", str(tmp_path / "lake"), "--quiet"]) in (0, 1)
    run, _ = open_stream(str(tmp_path / "lake"), str(tmp_path / "checkpoint"), ())
    assert run == StreamRun(run.query)


def test_a_stream_whose_checkpoint_is_gone_begins_anew(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    stream = Stream(tmp_path / "lake")
    stream.write([stream.fold_rows(table_of(found(DATA / "4.3.1/happy")))])
    with caplog.at_level("INFO", "share_state"):
        run, _ = open_stream(stream.lake, str(tmp_path / "checkpoint"), ())
    assert (run.records, present(last_stream_run(stream.lake)).query == run.query) == (0, False)
    assert "the checkpoint of the stream in" in caplog.text
    # With another warehouse, by mistake, that checkpoint stays.
    with pytest.raises(WarehouseError, match=f"belongs to the stream that writes {stream.lake}; give another folder"):
        open_stream(str(tmp_path / "other"), str(tmp_path / "checkpoint"), ())
    assert [path.name for path in (tmp_path / "checkpoint").iterdir()] == [run.query]


def test_only_tables_that_were_committed_can_be_gone(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    lake, checkpoint = str(tmp_path / "lake"), str(tmp_path / "checkpoint")
    with caplog.at_level("INFO", "share_state"):
        open_stream(lake, checkpoint, ())
        _, folder = open_stream(lake, checkpoint, ())
        assert not caplog.text
        # As Spark notes that a micro-batch is done.
        Path(folder, "commits").mkdir()
        Path(folder, "commits/0").touch()
        open_stream(lake, checkpoint, ())
    assert f"{lake}: the tables of the stream in {checkpoint} are gone; it starts over" in caplog.text


def test_a_checkpoint_of_another_release_is_made_anew(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    lake, checkpoint = str(tmp_path / "lake"), str(tmp_path / "checkpoint")
    run, folder = open_stream(lake, checkpoint, ())
    with StreamTables(lake, run) as tables:
        tables.write(0, [LogChanges("", problems=["one"])])
    assert open_stream(lake, checkpoint, ())[1] == folder
    Path(folder, "share_state_layout").write_text("1")
    with caplog.at_level("INFO", "share_state"):
        _, other = open_stream(lake, checkpoint, ())
    assert other != folder
    assert not Path(folder).exists()
    said = f"{checkpoint}: another release has stored the state otherwise; the stream starts over"
    assert [line.message for line in caplog.records] == [said]
