"""kafka-dump-log itself, on logs with records in ARCHIVING: its text is read, and is the same in 4.3.1 and 4.4.0."""

import os
import subprocess
from pathlib import Path

import pytest

from share_state.errors import SetupError
from share_state.fold.state_log import fold_log
from share_state.sources import jars
from share_state.sources.discovery import find_logs
from tests.profiles import nightly
from tests.sources.formats.tables import found, tables_of
from tests.truth import DATA

# In 4.3.1 the tool needs classes of the broker.
RELEASES = {
    "4.4.0": (jars.KAFKA_TOOLS, jars.TEST_BROKER),
    "4.3.1": (jars.TOOLS_BEFORE_RESETS, jars.BROKER_BEFORE_DEAD_LETTERS),
}
FOLDER = "__share_group_state-2"


def dumped(release: str, segment: Path) -> bytes:
    """What kafka-dump-log of a release prints about a segment."""
    try:
        class_path = [jar for name in RELEASES[release] for jar in jars.jars(name)]
        java = jars.java()
    except SetupError as error:
        pytest.skip(str(error))
    command = [java, "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-cp", os.pathsep.join(map(str, class_path))]
    command += ["org.apache.kafka.tools.DumpLogSegments", "--share-group-state-decoder", "--files"]
    place = f"{segment.parent.name}/{segment.name}"
    done = subprocess.run([*command, place], cwd=segment.parent.parent, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@nightly("a start of Java")
def test_what_the_tool_of_4_4_prints_folds_to_the_tables_of_the_segment(tmp_path: Path):
    (log,) = find_logs([str(DATA / "4.4.0/dlq" / FOLDER)])
    text = dumped("4.4.0", Path(log.segments[0].path))
    assert text.count(b'"deliveryState":3') > 200
    (tmp_path / "dump.txt").write_bytes(text)
    (read,) = found(tmp_path / "dump.txt")
    assert tables_of(fold_log(read)) == tables_of(fold_log(log))


@nightly("a start of Java")
def test_the_text_in_the_fixtures_is_what_the_tool_of_4_4_prints():
    fixture = DATA / "4.4.0/happy" / f"dump-log-{FOLDER}.txt"
    assert dumped("4.4.0", DATA / "4.4.0/happy" / FOLDER / f"{0:020}.log") == fixture.read_bytes()


@nightly("a JVM for each of two releases")
def test_the_tool_of_4_4_prints_what_that_of_4_3_prints():
    segment = DATA / "4.4.0/dlq" / FOLDER / f"{0:020}.log"
    assert dumped("4.4.0", segment) == dumped("4.3.1", segment)
