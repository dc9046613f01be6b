"""Whatever cannot be used is refused in one line: where, which key, what was given, what may be."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from share_state.config.loading import ConfigError, load_settings, settings_for
from share_state.config.model import AuditSettings
from share_state.errors import ShareStateError
from tests.config.settings_text import REQUIRED, in_yaml
from tests.profiles import nightly, some_of

LINES = "sources: [{path: /exports/one}]\nwarehouse: /lake\n"
SOURCE = "a map of path, format, dialect, columns, kafka_properties"
LIMITS = (
    "delivery_count, record_locks, updates_per_snapshot, chain_length, stall_minutes, pinned_records, writer_version, "
    "archiving_seconds, giving_up_minutes, poison_ratio, retention_ratio, export_age, groups, batch_bytes"
)
TOP = ", ".join(AuditSettings.model_fields)
SEVERITIES = "error, warning, info or off"
COUNT = "a whole number from 1 to 2147483647"
NOT_YAML = "indent with spaces and put quotes around text with special characters"


def refusal(path: str | None, overrides: Any = (), environment: Any = None) -> str:
    with pytest.raises(ConfigError) as refused:
        load_settings(path, overrides, environment or {})
    return str(refused.value)


def test_a_refusal_is_the_projects_own():
    assert issubclass(ConfigError, ShareStateError)


IN_FILE = {
    "limits: {delivery_count: 99}": "limits.delivery_count: 99 given; give a whole number from 1 to 25",
    "limits: {delivery_count: 0}": "limits.delivery_count: 0 given; give a whole number from 1 to 25",
    "limits: {delivery_count: many}": "limits.delivery_count: many given; give a whole number from 1 to 25",
    "limits: {delivery_count: true}": "limits.delivery_count: true given; give a whole number from 1 to 25",
    "limits: {delivery_count: 2.5}": "limits.delivery_count: 2.5 given; give a whole number from 1 to 25",
    "limits: {delivery_count: [5]}": "limits.delivery_count: a list given; give a whole number from 1 to 25",
    "limits: {record_locks: 0}": f"limits.record_locks: 0 given; give {COUNT}",
    "limits: {record_locks: 3000000000}": f"limits.record_locks: 3000000000 given; give {COUNT}",
    "limits: {updates_per_snapshot: -1}": (
        "limits.updates_per_snapshot: -1 given; give a whole number from 0 to 2147483647"
    ),
    "limits: {chain_length: 0}": f"limits.chain_length: 0 given; give {COUNT}",
    "limits: {stall_minutes: 0}": "limits.stall_minutes: 0 given; give a number over 0",
    "limits: {stall_minutes: .inf}": "limits.stall_minutes: .inf given; give a number over 0",
    "limits: {stall_minutes: inf}": "limits.stall_minutes: inf given; give a number over 0",
    "limits: {stall_minutes: nan}": "limits.stall_minutes: nan given; give a number over 0",
    "limits: {pinned_records: 0}": f"limits.pinned_records: 0 given; give {COUNT}",
    "limits: {writer_version: 3.9}": "limits.writer_version: 3.9 given; give 4.0, 4.1, 4.2, 4.2.0, 4.2.1, 4.3 or 4.4",
    "limits: {archiving_seconds: -1}": "limits.archiving_seconds: -1 given; give a number of at least 0",
    "limits: {groups: {g: {delivery_count: 99}}}": (
        "limits.groups.g.delivery_count: 99 given; give a whole number from 1 to 25"
    ),
    "limits: 5": f"limits: 5 given; give a map of {LIMITS}",
    "limits: []": f"limits: an empty list given; give a map of {LIMITS}",
    "state_partitions: 0": f"state_partitions: 0 given; give {COUNT}",
    "retention: {history_days: 0}": "retention.history_days: 0 given; give a whole number from 1 to 36500",
    "retention: {replaced_files_days: 6}": "retention.replaced_files_days: 6 given; "
    "give a whole number from 7 to 36500",
    "clock: utc": "clock: utc given; give log or wall",
    "fail_on: fatal": f"fail_on: fatal given; give {SEVERITIES}",
    "rules: {OFFSET_GAP: loud}": f"rules.OFFSET_GAP: loud given; give {SEVERITIES}",
    "rules: {OFFSET_GAP: }": f"rules.OFFSET_GAP: nothing given; give {SEVERITIES}",
    "rules: [OFFSET_GAP]": f"rules: a list given; give a map of names to {SEVERITIES}",
    "rules: {OFSET_GAP: off}": "rules.OFSET_GAP: no such rule; did you mean OFFSET_GAP?",
    "rules: {offset_gap: off}": "rules.offset_gap: no such rule; did you mean OFFSET_GAP?",
    "rules: {X: off}": "rules.X: no such rule; `share-state rules` lists them",
    "report: {html: ''}": "report.html: '' given; give a path",
    "report: {htm: x}": "report.htm: no such key; did you mean report.html?",
    "topics: {a: b}": "topics: a map given; give a path",
    "spark: {conf: {a: [b]}}": "spark.conf.a: a list given; give text",
    "spark: {conf: {a: }}": "spark.conf.a: nothing given; give text",
    "spark: {conf: [a]}": "spark.conf: a list given; give a map of names to text",
    "fail-on: error": "fail-on: no such key; did you mean fail_on?",
    "delivery_count: 5": "delivery_count: no such key; did you mean limits.delivery_count?",
    "qqq: 5": f"qqq: no such key; give one of {TOP}",
    "limits: {qqq: 5}": f"limits.qqq: no such key; give one of {LIMITS}",
    "~: 5": f"~: no such key; give one of {TOP}",
    "<<: {cluster: a}": f"<<: no such key; give one of {TOP}",
    "_env_file: x": f"_env_file: no such key; give one of {TOP}",
    '"a\\nb": 5': f"'a\\nb': no such key; give one of {TOP}",
    f"limits: {{delivery_count: {'9' * 80}}}": (
        f"limits.delivery_count: {'9' * 57}... given; give a whole number from 1 to 25"
    ),
}


@pytest.mark.parametrize("line", IN_FILE)
def test_a_value_or_key_is_refused_by_file_and_key(write, line):
    assert refusal(write(f"{LINES}{line}\n")) == f"audit.yaml: {IN_FILE[line]}"


SOURCES = {
    "sources: []": f"sources: an empty list given; give a list of one or more: {SOURCE}",
    "sources: /exports": f"sources: '/exports' given; give a list of one or more: {SOURCE}",
    "sources: {path: /x}": f"sources: a map given; give a list of one or more: {SOURCE}",
    "sources:": f"sources: missing; give a list of one or more: {SOURCE}",
    "sources: [/exports]": f"sources.0: '/exports' given; give {SOURCE}",
    "sources: [{path: /x}, ~]": f"sources.1: nothing given; give {SOURCE}",
    "sources: [{format: auto}]": "sources.0.path: missing; give a path",
    "sources: [{path: /x}, {path: ''}]": "sources.1.path: '' given; give a path",
    "sources: [{path: /x, format: avro}]": (
        "sources.0.format: avro given; give auto, console-json, dump-log, segments, table or kafka"
    ),
    "sources: [{path: /x, columns: {keys: k}}]": (
        "sources.0.columns.keys: no such column; give one of key, value, topic, partition, offset, timestamp"
    ),
    "sources: [{path: /x, dialect: draft}]": (
        "sources.0.dialect: draft given; give auto, share_group_state or control_records"
    ),
    "sources: [{path: /x, fromat: auto}]": "sources.0.fromat: no such key; did you mean sources.0.format?",
}


@pytest.mark.parametrize("line", SOURCES)
def test_a_source_is_refused_by_its_number(write, line):
    assert refusal(write(f"warehouse: /lake\n{line}\n")) == f"audit.yaml: {SOURCES[line]}"


def test_a_missing_warehouse_is_said():
    assert refusal(None, ["sources.0.path=/x"]) == "the configuration: warehouse: missing; give a path"


OVERRIDES = {
    "limits.delivery_count=99": "--set limits.delivery_count: 99 given; give a whole number from 1 to 25",
    "limits={delivery_count: 99}": ("--set limits: limits.delivery_count: 99 given; give a whole number from 1 to 25"),
    "limits.delivery_count": "--set limits.delivery_count: no value; give KEY=VALUE, as in limits.delivery_count=3",
    "limits.delivery_cuont=3": "--set limits.delivery_cuont: no such key; did you mean limits.delivery_count?",
    "limits.qqq=3": f"--set limits.qqq: no such key; give one of {LIMITS}",
    "cluster.name=x": "--set cluster.name: no such key; cluster has none of its own",
    "a..b=3": f"--set a..b: no such key; give one of {TOP}",
    "=3": f"--set : no such key; give one of {TOP}",
    "__init__=3": f"--set __init__: no such key; give one of {TOP}",
    "sources.path=/x": "--set sources.path: no such key; number its items from 0, as in sources.0",
    "sources.-1.path=/x": "--set sources.-1.path: no such key; number its items from 0, as in sources.0",
    "sources.2.path=/x": "--set sources.2.path: the list has 1 items; the number of the next one is 1",
    "sources.1.format=auto": "audit.yaml: sources.1.path: missing; give a path",
    "rules.OFSET_GAP=off": "--set rules.OFSET_GAP: no such rule; did you mean OFFSET_GAP?",
    "rules.OFFSET_GAP=": f"--set rules.OFFSET_GAP: nothing given; give {SEVERITIES}",
    "rules.=off": "--set rules.: no such rule; `share-state rules` lists them",
    "warehouse=": "--set warehouse: missing; give a path",
    "rules=[a": f"--set rules: line 1, column 3: not YAML (expected ',' or ']', but got '<stream end>'); {NOT_YAML}",
    "rules={TORN_TAIL: off, TORN_TAIL: info}": (
        "--set rules: line 1, column 18: TORN_TAIL appears twice, first in line 1; keep one"
    ),
}


@pytest.mark.parametrize("override", OVERRIDES)
def test_a_set_is_refused_as_it_was_typed(write, override):
    assert refusal(write(REQUIRED), [override]) == OVERRIDES[override]


VARIABLES = {
    "LIMITS__DELIVERY_COUNT=99": "99 given; give a whole number from 1 to 25",
    "LIMITS={delivery_count: 99}": "limits.delivery_count: 99 given; give a whole number from 1 to 25",
    "STATE_PARTITIONS=none": f"none given; give {COUNT}",
    "SOURCES__0__FORMAT=avro": "avro given; give auto, console-json, dump-log, segments, table or kafka",
    "SOURCES__9__PATH=/x": "the list has 1 items; the number of the next one is 1",
    "SOURCES__PATH=/x": "no such key; number its items from 0, as in SHARE_STATE_SOURCES__0",
    "RULES__OFSET_GAP=off": "no such rule; did you mean OFFSET_GAP?",
    "LIMITS__DELIVERY_CUONT=3": "no such key; did you mean SHARE_STATE_LIMITS__DELIVERY_COUNT?",
    "LIMITS__QQQ=3": f"no such key; give one of {LIMITS}",
    "SPARK__CONF=[": f"line 1, column 2: not YAML (expected the node content, but found '<stream end>'); {NOT_YAML}",
    "WAREHOSE=/x": "no such setting; did you mean SHARE_STATE_WAREHOUSE?",
    "LIMITS_DELIVERY_COUNT=3": "no such setting; did you mean SHARE_STATE_LIMITS__DELIVERY_COUNT?",
    "LIMIT__DELIVERY_COUNT=3": "no such setting; did you mean SHARE_STATE_LIMITS__DELIVERY_COUNT?",
    "RULE__OFFSET_GAP=off": "no such setting; did you mean SHARE_STATE_RULES__OFFSET_GAP?",
    "CLUSTER=\udcff": "'\\udcff' is not Unicode text; give UTF-8",
    "RULES={\udcff: off}": "line 1: the character #xdcff is not text; remove it",
    "TOPIC=x": "no such setting; did you mean SHARE_STATE_TOPICS?",
}


@pytest.mark.parametrize("variable", VARIABLES)
def test_a_variable_is_refused_by_its_name(write, variable):
    name, _, value = variable.partition("=")
    name = f"SHARE_STATE_{name}"
    assert refusal(write(REQUIRED), (), {name: value}) == f"{name}: {VARIABLES[variable]}"


def test_a_call_is_refused_by_what_was_typed():
    with pytest.raises(ConfigError) as refused:
        settings_for(["/a", ""], "/out", (), {})
    assert str(refused.value) == "INPUT: sources.1.path: '' given; give a path"
    with pytest.raises(ConfigError) as refused:
        settings_for(["/a"], "", (), {})
    assert str(refused.value) == "--out: '' given; give a path"


def test_several_errors_are_counted_and_the_first_is_said(write):
    path = write(f"{LINES}fail_on: loud\nlimits: {{delivery_count: 99}}\n")
    said = "audit.yaml: limits.delivery_count: 99 given; give a whole number from 1 to 25"
    assert refusal(path) == f"{said} (and 1 more)"
    assert refusal(path, ["cluster.x=1"]) == "--set cluster.x: no such key; cluster has none of its own (and 2 more)"


def test_of_two_wrong_values_the_one_that_counts_is_said(write):
    variables = {"SHARE_STATE_LIMITS__DELIVERY_COUNT": "98"}
    assert refusal(write(f"{LINES}limits: {{delivery_count: 97}}\n"), ["limits.delivery_count=99"], variables) == (
        "--set limits.delivery_count: 99 given; give a whole number from 1 to 25"
    )


def test_a_misspelt_key_is_said_before_the_one_that_is_missing_for_it(write):
    path = write("sources: [{pth: /x}]\nwarehouse: /lake\n")
    assert refusal(path) == "audit.yaml: sources.0.pth: no such key; did you mean sources.0.path? (and 1 more)"
    path = write("sources: [{path: /x}]\nwarehose: /lake\n")
    assert refusal(path) == "audit.yaml: warehose: no such key; did you mean warehouse? (and 1 more)"


def test_a_wrong_value_in_the_file_does_not_matter_once_it_is_set(write):
    path = write(f"{LINES}limits: {{delivery_count: 99}}\n")
    assert load_settings(path, ["limits.delivery_count=4"], {}).limits.delivery_count == 4


def test_what_the_file_has_in_place_of_a_section_is_not_covered_up(write):
    said = f"audit.yaml: limits: 5 given; give a map of {LIMITS}"
    assert refusal(write(f"{LINES}limits: 5\n"), ["limits.delivery_count=4"]) == said
    said = f"audit.yaml: sources: '/x' given; give a list of one or more: {SOURCE}"
    assert refusal(write("sources: /x\nwarehouse: /lake\n"), ["sources.0.path=/y"]) == said


FILES = {
    b"": "empty; give at least sources and warehouse (conf/audit.yaml is an example)",
    b"# only words\n---\n": "empty; give at least sources and warehouse (conf/audit.yaml is an example)",
    b"- cluster: a\n": f"a list at the top; give a map of {TOP}",
    b"cluster\n": f"text at the top; give a map of {TOP}",
    b"cluster: a\nsources: [\n": (
        f"line 3, column 1: not YAML (expected the node content, but found '<stream end>'); {NOT_YAML}"
    ),
    b"limits:\n\tdelivery_count: 5\n": (
        f"line 2, column 1: not YAML (found character '\\t' that cannot start any token); {NOT_YAML}"
    ),
    b"cluster: a: b\n": f"line 1, column 11: not YAML (mapping values are not allowed here); {NOT_YAML}",
    b"cluster: *a\n": f"line 1, column 10: not YAML (found undefined alias 'a'); {NOT_YAML}",
    b"cluster: &a [*a]\n": f"line 1, column 10: not YAML (found unconstructable recursive node); {NOT_YAML}",
    b"a: 1\n---\nb: 2\n": f"line 2, column 1: not YAML (but found another document); {NOT_YAML}",
    b"cluster: a\nlimits: {}\ncluster: b\n": "line 3, column 1: cluster appears twice, first in line 1; keep one",
    b"limits:\n  record_locks: 1\n  'record_locks': 2\n": (
        "line 3, column 3: record_locks appears twice, first in line 2; keep one"
    ),
    b'cluster: a\nwarehouse: "\\ud83d"\n': "line 2, column 12: '\\ud83d' is not Unicode text; give UTF-8",
    b"[a]: b\n": "line 1, column 1: a list or a map in place of a key; give a name",
    b"cluster: a\nwarehouse: \x01\n": "line 2: the character #x0001 is not text; remove it",
    b"cluster: a\nwarehouse: K\xfcche\n": "line 2: not UTF-8; save the file as UTF-8 text",
    "cluster: a\n".encode("utf-16"): "line 1: not UTF-8; save the file as UTF-8 text",
    b"[" * 5000: "lists or maps are nested too deeply; no key needs more than three levels",
}


@pytest.mark.parametrize("raw", some_of(FILES, 9), ids=lambda raw: str(raw[:30]))
def test_a_file_that_is_no_configuration_is_refused(write, raw):
    assert refusal(write(raw)) == f"audit.yaml: {FILES[raw]}"


def test_a_file_that_cannot_be_read_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("conf").mkdir()
    long = "x" * 300
    example = "conf/audit.yaml is an example"
    assert refusal("none.yaml") == f"none.yaml: no such file; give the audit's YAML file ({example})"
    assert refusal("conf") == "conf: a folder; give the YAML file in it"
    assert refusal(long) == f"{long}: cannot be read (File name too long); give a file that this user may read"


def test_a_secret_is_not_in_a_refusal():
    said = refusal(None, ["spark.conf={x.secret: [hush]}", "sources.0.path=/x", "warehouse=/y"])
    assert said == "--set spark.conf: spark.conf.x.secret: a list given; give text"


YAML = st.recursive(
    st.none() | st.integers() | st.text(max_size=5) | st.sampled_from(["off", "auto", "4.4"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@nightly("drawn maps; the tests above have the errors by name")
@given(drawn=st.dictionaries(st.sampled_from([*AuditSettings.model_fields, "other"]), YAML))
def test_any_map_is_read_or_refused_in_one_line(write, drawn):
    try:
        settings = load_settings(write(in_yaml(drawn)), (), {})
    except ConfigError as error:
        assert str(error).startswith("audit.yaml: ")
        assert len(str(error).splitlines()) == 1
    else:
        assert settings.sources


@given(raw=st.binary(max_size=40) | st.text(max_size=40).map(str.encode))
def test_any_file_is_refused_in_one_line(write, raw):
    said = refusal(write(raw))
    assert said.startswith("audit.yaml: ")
    assert len(said.splitlines()) == 1


@given(override=st.text(max_size=30) | st.text(max_size=15).map("rules={}".format) | st.text().map("limits={}".format))
def test_any_set_is_taken_or_refused_in_one_line(write, override):
    try:
        load_settings(write(REQUIRED), [override], {})
    except ConfigError as error:
        assert str(error).startswith("--set ")
        assert len(str(error).splitlines()) == 1
