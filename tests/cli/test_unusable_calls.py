"""Whatever cannot be used: one clear line on stderr, exit code 2, nothing written."""

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

import share_state
from share_state.cli.main import run
from share_state.errors import InputError, ShareStateError
from tests.cli.commands import Command, CommandResult, contents
from tests.profiles import nightly, some_of
from tests.truth import DATA

HAPPY = DATA / "4.3.1/happy"
STATE = "__share_group_state-0"
SEGMENT = f"{0:020}.log"


def _refused(said: CommandResult, *words: str) -> None:
    assert said.code == 2, said
    assert said.out == ""
    assert said.err.startswith("share-state: ")
    assert said.err.count("\n") == 1 == len(said.err.splitlines())
    assert "Traceback" not in said.err
    for word in words:
        assert word in said.err


def _empty_folder(place: Path) -> Path:
    place.mkdir()
    return place


def _no_log(place: Path) -> Path:
    place.mkdir()
    (place / "readme.md").write_text("no log here")
    return place


def _consumer_offsets(place: Path) -> Path:
    shutil.copytree(HAPPY / STATE, place / "__consumer_offsets-3")
    return place


def _text_file(place: Path) -> Path:
    place.write_text("a text file, long enough to be taken for something else\n" * 3)
    return place


def _text_in_a_segment(place: Path) -> Path:
    (place / STATE).mkdir(parents=True)
    (place / STATE / SEGMENT).write_text("a text file under the name of a segment\n" * 30)
    return place


def _noise_in_a_segment(place: Path) -> Path:
    (place / STATE).mkdir(parents=True)
    (place / STATE / SEGMENT).write_bytes(bytes(range(1, 256)) * 30)
    return place


def _link_to_nothing(place: Path) -> Path:
    place.symlink_to(place.parent / "gone")
    return place


def _link_to_itself(place: Path) -> Path:
    place.symlink_to(place)
    return place


def _segment_that_is_gone(place: Path) -> Path:
    (place / STATE).mkdir(parents=True)
    (place / STATE / SEGMENT).symlink_to(place / "gone")
    return place


def _folder_in_place_of_a_segment(place: Path) -> Path:
    (place / STATE / SEGMENT).mkdir(parents=True)
    return place


def _pipe(place: Path) -> Path:
    os.mkfifo(place)
    return place


def _pipe_in_place_of_a_segment(place: Path) -> Path:
    (place / STATE).mkdir(parents=True)
    _pipe(place / STATE / SEGMENT)
    return place


def _partition_beyond_all(place: Path) -> Path:
    shutil.copytree(HAPPY / STATE, place / "__share_group_state-99999999999")
    return place


def _name_that_is_not_utf_8(place: Path) -> Path:
    shutil.copytree(HAPPY / STATE, place / NOT_UTF_8 / STATE)
    return place


def _json_too_deep(place: Path) -> Path:
    place.write_text('{"key":' + "[" * 99_999)
    return place


NOT_UTF_8 = os.fsdecode(b"lo\xff")
INPUTS = {
    "a missing path": (lambda place: place, "no such file or folder"),
    "an empty folder": (_empty_folder, "no log segments here"),
    "a folder that is no log": (_no_log, "no log segments here"),
    "a log of Kafka's own": (_consumer_offsets, "__consumer_offsets"),
    "a text file": (_text_file, "not a log segment"),
    "a text file named as a segment": (_text_in_a_segment, "nothing in it is a record batch"),
    "noise named as a segment": (_noise_in_a_segment, "nothing in it is a record batch"),
    "a link to nothing": (_link_to_nothing, "no such file or folder"),
    "a link to itself": (_link_to_itself, ""),
    "a segment that is gone": (_segment_that_is_gone, "cannot be read"),
    "a folder in place of a segment": (_folder_in_place_of_a_segment, "cannot be read"),
    "a pipe": (_pipe, "a pipe or a device"),
    "a pipe in place of a segment": (_pipe_in_place_of_a_segment, "a pipe or a device"),
    "a device": (lambda place: "/dev/zero", "a pipe or a device"),
    "a partition beyond all": (_partition_beyond_all, "a partition number above 2147483647"),
    "a name that is not UTF-8": (lambda place: place / NOT_UTF_8, "not UTF-8"),
    "a folder whose name is not UTF-8": (_name_that_is_not_utf_8, "not UTF-8"),
    "JSON that is too deep": (_json_too_deep, "not a log segment"),
    "an unknown kind of store": (lambda place: "ftp://host/broker", "ftp:// cannot be read"),
    "a glob that matches nothing": (lambda place: f"{place}/*", "no such file or folder"),
}
COMMANDS = {
    "reconstruct": lambda place: ["--out", place / "out"],
    "cutoff": lambda place: ["--delete-records", place / "offsets.json"],
    "decode": lambda place: ["--out", place / "out"],
}


@pytest.mark.parametrize("name", some_of(COMMANDS, 4))
@pytest.mark.parametrize("given", INPUTS)
def test_an_input_that_cannot_be_read_is_refused(cli: Command, tmp_path: Path, name: str, given: str):
    make, words = INPUTS[given]
    path = make(tmp_path / "input")
    before = contents(tmp_path)
    said = cli(name, path, *COMMANDS[name](tmp_path))
    if name == "decode" and "named as a segment" in given:
        # Decoding needs no whole batch: it tells of none.
        assert said.code == 0
        return
    _refused(said, words)
    assert contents(tmp_path) == before


def test_one_bad_input_among_good_ones_is_refused(cli: Command, tmp_path: Path):
    said = cli("reconstruct", HAPPY, tmp_path / "gone", "--out", tmp_path / "out")
    _refused(said, "gone: no such file or folder")
    assert not contents(tmp_path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_segment_without_the_right_to_read_it_is_refused(cli: Command, tmp_path: Path):
    shutil.copytree(HAPPY / STATE, tmp_path / STATE)
    (tmp_path / STATE / SEGMENT).chmod(0)
    _refused(cli("reconstruct", tmp_path, "--out", tmp_path / "out"), "Permission denied")


def _a_file(place: Path) -> Path:
    place.write_text("important")
    return place


def _below_a_file(place: Path) -> Path:
    return _a_file(place) / "warehouse"


def _a_full_folder(place: Path) -> Path:
    place.mkdir()
    (place / "thesis.txt").write_text("important")
    return place


def _a_table_of_that_name(place: Path) -> Path:
    (place / "findings").mkdir(parents=True)
    (place / "findings" / "thesis.txt").write_text("important")
    return place


OUTPUTS = {
    "a file": _a_file,
    "a path below a file": _below_a_file,
    "a folder that holds something else": _a_full_folder,
    "a folder of that name with something else": _a_table_of_that_name,
    "a link to itself": _link_to_itself,
}


@pytest.mark.parametrize("name", ["reconstruct", "decode"])
@pytest.mark.parametrize("given", OUTPUTS)
def test_a_place_for_tables_that_holds_something_else_is_refused(cli: Command, tmp_path: Path, name: str, given: str):
    place = OUTPUTS[given](tmp_path / "out")
    before = contents(tmp_path)
    _refused(cli(name, HAPPY, "--out", place), str(place))
    assert contents(tmp_path) == before


def test_the_log_folder_itself_is_no_place_for_tables(cli: Command, tmp_path: Path):
    shutil.copytree(HAPPY, tmp_path / "broker")
    before = contents(tmp_path)
    _refused(cli("reconstruct", tmp_path / "broker", "--out", tmp_path / "broker"), "holds something else")
    assert contents(tmp_path) == before


@pytest.mark.parametrize(("file", "why"), [("missing/offsets.json", "does not exist"), (".", "is a folder")])
def test_a_file_of_offsets_that_cannot_be_written_is_refused(cli: Command, tmp_path: Path, file: str, why: str):
    said = cli("cutoff", DATA / "4.3.1/chaos", "--delete-records", tmp_path / file)
    _refused(said, why)
    assert not contents(tmp_path)


def test_a_log_without_a_number_cannot_be_cleaned(cli: Command, tmp_path: Path):
    shutil.copy(next((DATA / "4.3.1/chaos" / STATE).glob("*.log")), tmp_path / SEGMENT)
    before = contents(tmp_path)
    said = cli("cutoff", tmp_path / SEGMENT, "--delete-records", tmp_path / "offsets.json")
    _refused(said, "__share_group_state-N")
    assert contents(tmp_path) == before


OPTIONS = [
    (["--format", "table"], "neither Parquet nor lines of JSON"),
    (["--format", "nonsense"], "--format nonsense"),
    (["--dialect", "nonsense"], "--dialect nonsense"),
    (["--as-of-offset", "3"], "--as-of-offset 3"),
    (["--as-of-offset", "a=3"], "--as-of-offset a=3"),
    (["--as-of-offset", "0=-1"], "--as-of-offset 0=-1"),
    (["--as-of-offset", "0=x"], "--as-of-offset 0=x"),
    (["--as-of-offset", "99=3"], "partition 99 is not in the input"),
    (["--as-of-time", "yesterday"], "--as-of-time yesterday"),
    (["--as-of-time", "2026-13-01"], "--as-of-time 2026-13-01"),
    (["--state-partitions", "0"], "--state-partitions"),
    (["--state-partitions", "many"], "--state-partitions"),
    (["--rule", "TORN_TAIL"], "--rule TORN_TAIL"),
    (["--rule", "NONSENSE=off"], "no such rule"),
    (["--rule", "TORN_TAIL=loud"], "--rule TORN_TAIL=loud"),
    (["--fail-on", "nonsense"], "--fail-on nonsense"),
    (["--spark-conf", "spark.x"], "--spark-conf spark.x"),
    (["--master", "nonsense"], "--master nonsense"),
    (["--master", "local[many]"], "--master local[many]"),
    (["--mode", "lax"], "--mode lax"),
    (["--nonsense"], "--nonsense"),
]


@pytest.mark.parametrize("name", some_of(["reconstruct", "cutoff"], 1))
@pytest.mark.parametrize(("options", "words"), OPTIONS, ids=lambda value: value if isinstance(value, str) else "")
def test_an_option_that_means_nothing_is_refused(
    cli: Command, tmp_path: Path, name: str, options: list[str], words: str
):
    _refused(cli(name, HAPPY, *COMMANDS[name](tmp_path), *options), words)
    assert not contents(tmp_path)


TOPICS = {
    "missing": None,
    "no JSON": "hello",
    "not UTF-8": b"\xff\xfe",
    "a number": "7",
    "a list of numbers": "[1, 2]",
    "a list in place of an id": '[{"topicId": [1], "name": "t"}]',
    "no partitions": '{"AAAAAAAAAAEAAAAAAAAAAg": {"name": "t", "partitions": 0}}',
    "end offsets that are none": '{"AAAAAAAAAAEAAAAAAAAAAg": {"name": "t", "end_offsets": {"0": "x"}}}',
    "end offsets in a list": '{"AAAAAAAAAAEAAAAAAAAAAg": {"name": "t", "end_offsets": [1], "partitions": []}}',
    "an end offset beyond all": '{"AAAAAAAAAAEAAAAAAAAAAg": {"name": "t", "end_offsets": {"0": 9223372036854775808}}}',
    "lists too deep": "[" * 99_999,
    "maps too deep": '{"a":' * 99_999,
    "partitions of 5000 digits": '{"AAAAAAAAAAEAAAAAAAAAAg": {"name": "t", "partitions": ' + "9" * 5000 + "}}",
    "a name that is no Unicode": '{"AAAAAAAAAAEAAAAAAAAAAg": {"name": "\\ud800"}}',
    "a partition beyond all": '{"AAAAAAAAAAEAAAAAAAAAAg": {"name": "t", "end_offsets": {"4294967296": 1}}}',
}


@pytest.mark.parametrize("given", TOPICS)
def test_a_file_of_topics_that_is_none_is_refused(cli: Command, tmp_path: Path, given: str):
    file, content = tmp_path / "topics.json", TOPICS[given]
    if content is not None:
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
    before = contents(tmp_path)
    _refused(cli("reconstruct", HAPPY, "--out", tmp_path / "out", "--topics", file), str(file))
    assert contents(tmp_path) == before


def test_a_pipe_in_place_of_a_settings_file_is_refused(cli: Command, tmp_path: Path):
    pipe = _pipe(tmp_path / "pipe")
    _refused(cli("reconstruct", HAPPY, "--out", tmp_path / "out", "--topics", pipe), "a pipe or a device")
    _refused(cli("audit", "--config", pipe), "a pipe or a device")
    assert not (tmp_path / "out").exists()


def test_an_output_whose_name_is_not_utf_8_is_refused(cli: Command, tmp_path: Path):
    _refused(cli("reconstruct", HAPPY, "--out", tmp_path / NOT_UTF_8), "not UTF-8")
    assert not contents(tmp_path)


def test_a_warehouse_as_input_is_refused_as_such(cli: Command, chaos: Path, tmp_path: Path):
    _refused(cli("reconstruct", chaos, "--out", tmp_path / "out"), f"{chaos}: a warehouse that share-state wrote")
    with pytest.raises(InputError, match="a warehouse that share-state wrote"):
        share_state.reconstruct(str(chaos))


@pytest.mark.parametrize(
    "arguments",
    [["nonsense"], ["reconstruct"], ["reconstruct", HAPPY], ["cutoff"], ["decode"], ["show", "a", "b"]],
)
def test_a_call_that_is_none_is_refused(cli: Command, arguments: list[str]):
    command = "" if arguments == ["nonsense"] else f" {arguments[0]}"
    _refused(cli(*arguments), f"`share-state{command} --help` lists what can be given")


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("show", "--partition", "x"), "--partition x: give a whole number"),
        (("cutoff", HAPPY, "--as-of-offset", "1"), "--as-of-offset 1: give P=OFFSET"),
        (("cutoff", HAPPY, "--state-partitions=0"), "--state-partitions 0: give at least 1"),
        (("audit", HAPPY, "--out", "w", "--fail-on", "x"), "--fail-on x: give one of error, warning, info, off"),
        (("why", HAPPY), f"Missing argument 'INPUT...|WAREHOUSE' after GROUP {HAPPY}; "),
        (("decode", "./nowhere/"), "./nowhere/: no such file or folder; give the folder that holds "),
    ],
)
def test_an_error_names_what_was_given_as_it_was_written(cli: Command, arguments: tuple[object, ...], error: str):
    said = cli(*arguments)
    _refused(said, error)
    assert said.err.startswith(f"share-state: {error}")


@pytest.mark.parametrize("name", ["reconstruct", "audit", "cutoff", "repair", "compare"])
def test_a_cluster_may_be_given_in_capitals(cli: Command, chaos: Path, tmp_path: Path, name: str):
    out = ["--out", tmp_path / "out"] if name in ("reconstruct", "audit") else []
    said = cli(name, *([chaos] if name == "compare" else []), "KAFKA://broker", *out)
    _refused(said, "kafka://broker: not the address of a cluster; give kafka://HOST:PORT")


def test_a_path_of_two_lines_is_refused_in_one(cli: Command, tmp_path: Path):
    _refused(cli("decode", f"{tmp_path}/a\nb"), "no such file or folder")


def test_a_place_without_a_warehouse_cannot_be_shown(cli: Command, tmp_path: Path):
    for place in (tmp_path / "gone", _a_file(tmp_path / "file")):
        _refused(cli("show", place), "no warehouse here", f"INPUT --out {place}")
    _refused(cli("show", tmp_path), "no warehouse here", f"reconstruct {tmp_path} --out WAREHOUSE")


def test_a_warehouse_with_a_table_missing_cannot_be_shown(cli: Command, chaos: Path, tmp_path: Path):
    shutil.copytree(chaos, tmp_path / "copy")
    shutil.rmtree(tmp_path / "copy" / "in_flight")
    _refused(cli("show", tmp_path / "copy"), "in_flight", "run reconstruct again")


def test_a_warehouse_whose_files_are_gone_cannot_be_shown(cli: Command, chaos: Path, tmp_path: Path):
    shutil.copytree(chaos, tmp_path / "copy")
    for file in (tmp_path / "copy" / "share_partition_state").glob("*.parquet"):
        file.unlink()
    _refused(cli("show", tmp_path / "copy"), "share_partition_state", "run reconstruct again")


def test_without_stdout_nothing_is_begun(monkeypatch: pytest.MonkeyPatch, cli: Command, tmp_path: Path):
    monkeypatch.setattr(sys, "stdout", None)
    said = cli("reconstruct", HAPPY, "--out", tmp_path / "w")
    assert (said.code, said.err) == (2, "share-state: stdout is closed; redirect it, such as >/dev/null\n")
    assert not (tmp_path / "w").exists()


def test_an_error_after_output_that_cannot_be_written_keeps_its_exit_code(monkeypatch: pytest.MonkeyPatch):
    def fail_late(*_: object) -> None:
        sys.stdout.write("a record\n")
        raise ShareStateError("a damaged page")

    monkeypatch.setattr("share_state.cli.logs.print_records", fail_late)
    # Closing the file writes what is left in its buffer.
    with monkeypatch.context() as full, Path("/dev/full").open("w", encoding="utf-8") as stream:
        full.setattr(sys, "stdout", stream)
        assert run(["decode", str(HAPPY)]) == 2


def test_without_stderr_the_exit_code_is_the_same(monkeypatch: pytest.MonkeyPatch, cli: Command):
    monkeypatch.setattr(sys, "stderr", None)
    assert cli("show", "nope").code == 2


def test_a_deleted_working_directory_is_one_line(monkeypatch: pytest.MonkeyPatch, cli: Command, tmp_path: Path):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    said = cli("reconstruct", HAPPY, "--out", "w")
    assert (said.code, said.err) == (2, "share-state: the working directory is deleted; change to another one\n")


def test_text_that_stdout_cannot_encode_is_escaped(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    with monkeypatch.context() as ascii_only, (tmp_path / "out").open("w", encoding="ascii") as stream:
        ascii_only.setattr(sys, "stdout", stream)
        assert run(["decode", str(DATA / "4.3.1/fuzz")]) == 0
    groups = {json.loads(line)["group_id"] for line in (tmp_path / "out").read_text().splitlines()}
    assert "fz-3-é中" in groups


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (("reconstruct", HAPPY, "--out", ""), "--out ''"),
        (("audit", HAPPY, "--out="), "--out ''"),
        (("cutoff", ""), "INPUT ''"),
        (("show", ""), "WAREHOUSE ''"),
        (("audit", HAPPY, "--out", "w", "--set", ""), "--set ''"),
    ],
)
def test_an_unset_variable_is_refused(
    cli: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: tuple[object, ...], named: str
):
    monkeypatch.chdir(tmp_path)
    _refused(cli(*call), f"{named}: is empty; give a value (is a variable unset?)")
    assert contents(tmp_path) == {}


@pytest.mark.parametrize("given", [{"input": ""}, {"input": HAPPY, "warehouse": ""}, {"input": HAPPY, "topics": ""}])
def test_an_empty_path_is_refused_in_python(given: dict[str, Any]):
    with pytest.raises(ShareStateError, match="='': give "):
        share_state.reconstruct(**given)


@nightly("four runs")
def test_paths_may_be_file_addresses(cli: Command, tmp_path: Path):
    address, lake = f"file://{tmp_path}", tmp_path / "a lake"
    offsets = (f"{address}/offsets.json", tmp_path / "offsets.json")
    assert cli("reconstruct", f"file://{HAPPY}", "--out", f"{address}/a%20lake").code == 0
    assert cli("show", f"{address}/a%20lake").out == cli("show", lake).out != ""
    assert cli("cutoff", HAPPY, "--delete-records", offsets[0]).code == 0
    assert offsets[1].is_file()
    assert cli("audit", "--config", _audit_file(tmp_path, f"{address}/audited")).code == 0
    share_state.reconstruct(HAPPY, warehouse=f"{address}/python")
    assert (tmp_path / "audited/runs").is_dir()
    assert (tmp_path / "python/runs").is_dir()


def _audit_file(folder: Path, warehouse: str) -> Path:
    target = folder / "audit.yaml"
    target.write_text(f"sources: [{{path: {HAPPY}}}]\nwarehouse: {warehouse}\n")
    return target


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (("cutoff", HAPPY, "--accept"), "--accept: drops entries of share snapshot files; give --index too"),
        (("cutoff", HAPPY, "--index", "idx"), "--index: is for control records, and the input has none"),
        (("cutoff", HAPPY, "--ignore-uncheckpointed"), "--ignore-uncheckpointed: is for control records"),
        (
            ("reconstruct", HAPPY, "--out", "w", "--as-of-offset", "0=5", "--as-of-offset", "0=9"),
            "--as-of-offset 0: is given twice",
        ),
    ],
)
def test_an_option_without_effect_is_refused(
    cli: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: tuple[object, ...], words: str
):
    monkeypatch.chdir(tmp_path)
    _refused(cli(*call), words)
    assert contents(tmp_path) == {}


@pytest.mark.parametrize(
    ("topics", "place"),
    [
        ({"xx": {"name": "orders"}}, "xx: is no topic id, which has 22 characters"),
        ({"p1B9sTCnRdWJ8VhuVCf7gQ": {"partitions": "3"}}, "p1B9sTCnRdWJ8VhuVCf7gQ.partitions: must be a whole number"),
        ({"p1B9sTCnRdWJ8VhuVCf7gQ": {"end_offsets": [1]}}, "p1B9sTCnRdWJ8VhuVCf7gQ.end_offsets: must be an object"),
    ],
)
def test_a_file_of_topics_is_refused_with_the_place(cli: Command, tmp_path: Path, topics: object, place: str):
    file = tmp_path / "topics.json"
    file.write_text(json.dumps(topics))
    _refused(cli("cutoff", HAPPY, "--topics", file), f"{file}: {place}; give {{")
