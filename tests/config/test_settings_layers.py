"""Set wins over variable, variable over file, file over default; and each of the three can say the same."""

from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from share_state.config.loading import load_settings, settings_for
from share_state.config.model import Clock, FailingVerdict, Verdict, keys
from share_state.config.sections import Claims, Column, Dialect, FileFormat, Format, Mode
from share_state.kafka.releases import RELEASES
from share_state.rules.breaches import OFF, SEVERITIES
from share_state.rules.registry import registered
from tests.config.settings_text import REQUIRED, at_key, in_yaml, with_key

COUNTS = st.integers(1, 2**31 - 1)
TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1)
SEVERITY = st.sampled_from([*SEVERITIES, OFF])
FORMATS, DIALECTS = st.sampled_from(get_args(Format)), st.sampled_from(get_args(Dialect))
COLUMNS = st.dictionaries(st.sampled_from(get_args(Column)), TEXTS)
SOURCE = st.fixed_dictionaries(
    {"path": TEXTS, "format": FORMATS, "dialect": DIALECTS, "columns": COLUMNS, "kafka_properties": TEXTS}
)
GROUP_CONFIGS = st.fixed_dictionaries({"delivery_count": st.integers(1, 25), "record_locks": COUNTS})
RULES = st.sampled_from(sorted(registered()))
VERDICTS, DATES = st.sampled_from(get_args(Verdict)), st.dates()
_WHERE = {"group": TEXTS, "topic": TEXTS, "partition": COUNTS, "until": DATES}
ACKNOWLEDGED = st.fixed_dictionaries(
    {"rule": RULES, "verdict": st.none(), "state_partition": COUNTS, **_WHERE}
) | st.fixed_dictionaries({"rule": st.none(), "verdict": VERDICTS, "state_partition": st.none(), **_WHERE})
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "cluster": TEXTS,
    "sources": st.lists(SOURCE, min_size=1, max_size=3),
    "sources.0.path": TEXTS,
    "sources.0.format": FORMATS,
    "sources.0.dialect": DIALECTS,
    "sources.0.columns": COLUMNS,
    "sources.0.kafka_properties": TEXTS,
    "warehouse": TEXTS,
    "state_partitions": COUNTS,
    "topics": TEXTS,
    "limits.delivery_count": st.integers(1, 25),
    "limits.record_locks": COUNTS,
    "limits.updates_per_snapshot": st.integers(0, 2**31 - 1),
    "limits.chain_length": COUNTS,
    "limits.stall_minutes": st.floats(0.001, 1e9),
    "limits.pinned_records": COUNTS,
    "limits.writer_version": st.sampled_from([*RELEASES]),
    "limits.archiving_seconds": st.floats(0, 1e9),
    "limits.giving_up_minutes": st.floats(0.001, 1e9),
    "limits.poison_ratio": st.floats(0, 1),
    "limits.retention_ratio": st.floats(0.01, 1),
    "limits.export_age": st.floats(0, 1e9),
    "limits.groups": st.dictionaries(TEXTS, GROUP_CONFIGS, min_size=1, max_size=3),
    "limits.batch_bytes": COUNTS,
    "groups.paths": st.lists(TEXTS, min_size=1, max_size=3),
    "groups.format": st.sampled_from(get_args(FileFormat)),
    "groups.columns": COLUMNS,
    "groups.partitions": COUNTS,
    "groups.claims": st.sampled_from(get_args(Claims)),
    "groups.members": COUNTS,
    "groups.retry_seconds": COUNTS,
    "groups.delete_grace_seconds": COUNTS,
    "control_records.mode": st.sampled_from(get_args(Mode)),
    "control_records.subscriptions": TEXTS,
    "control_records.ignore_uncheckpointed": st.booleans(),
    "control_records.full_read_every": st.integers(1, 30),
    "control_records.index": TEXTS,
    "dead_letters": st.lists(TEXTS, max_size=3),
    "dead_letters_copied_last": st.booleans(),
    "clock": st.sampled_from(get_args(Clock)),
    "rules": st.dictionaries(RULES, SEVERITY),
    "fail_on": SEVERITY,
    "fail_on_verdict": st.sampled_from(get_args(FailingVerdict)),
    "acknowledged": st.lists(ACKNOWLEDGED, max_size=3),
    "acknowledged.0.rule": RULES,
    "acknowledged.0.verdict": VERDICTS,
    "acknowledged.0.group": TEXTS,
    "acknowledged.0.topic": TEXTS,
    "acknowledged.0.partition": COUNTS,
    "acknowledged.0.state_partition": COUNTS,
    "acknowledged.0.until": DATES,
    "report.html": TEXTS,
    "report.index": TEXTS,
    "report.prometheus": TEXTS,
    "report.prometheus_share_partitions": st.integers(0, 10_000_000),
    "retention.history_days": st.integers(1, 36_500),
    "retention.replaced_files_days": st.integers(7, 36_500),
    "spark.master": TEXTS,
    "spark.conf": st.dictionaries(TEXTS, TEXTS),
}
VARIABLES = {key.name.replace(".N.", ".0."): key.variable.replace("__N__", "__0__") for key in keys()}


def with_items(key: str) -> dict[str, Any]:
    """Settings in which a key can be set; an acknowledgement names a rule or a verdict."""
    item = {"verdict": "STOP"} if key.endswith(".verdict") else {"rule": "CRC_MISMATCH"}
    return {**REQUIRED, "acknowledged": [item]}


ANY_KEY = st.sampled_from(sorted(VALUES)).flatmap(lambda key: st.tuples(st.just(key), VALUES[key]))


def test_every_key_is_drawn_below():
    assert set(VALUES) == set(VARIABLES)


@given(drawn=ANY_KEY)
def test_file_variable_and_set_say_the_same(write, drawn):
    key, value = drawn
    by_file = load_settings(write(with_key(with_items(key), key, value)), (), {})
    by_variable = load_settings(write(with_items(key)), (), {VARIABLES[key]: in_yaml(value)})
    by_set = load_settings(write(with_items(key)), [f"{key}={in_yaml(value)}"], {})
    assert by_file == by_variable == by_set
    assert at_key(by_file.model_dump(), key) == value


@given(drawn=st.sampled_from(sorted(VALUES)).flatmap(lambda key: st.tuples(st.just(key), *[VALUES[key]] * 3)))
def test_set_wins_over_variable_over_file(write, drawn):
    key, in_file, in_variable, in_set = drawn
    path, variables = write(with_key(with_items(key), key, in_file)), {VARIABLES[key]: in_yaml(in_variable)}
    assert at_key(load_settings(path, (), variables).model_dump(), key) == in_variable
    assert at_key(load_settings(path, [f"{key}={in_yaml(in_set)}"], variables).model_dump(), key) == in_set


@given(
    text=st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1).filter(lambda text: text[0] not in "'\"~")
)
def test_text_needs_no_quotes_in_a_variable_or_set(write, text):
    path = write(REQUIRED)
    assert load_settings(path, [f"sources.0.path=/{text}"], {}).sources[0].path == f"/{text}"
    assert load_settings(path, [f"warehouse={text}-"], {}).warehouse == f"{text}-"
    assert load_settings(path, (), {"SHARE_STATE_WAREHOUSE": f" {text}- "}).warehouse == f"{text}-"


@pytest.mark.parametrize("text", ["*/x-[0-9]", "[ab]*", "/a: b", "/x #y", "{a,b}", "&a", "!x", "@x", "%x", "- x", "=="])
def test_a_glob_needs_no_quotes(write, text):
    assert load_settings(write(REQUIRED), [f"sources.0.path={text}"], {}).sources[0].path == text


def test_spaces_around_the_sign_do_not_matter(write):
    assert load_settings(write(REQUIRED), [" limits.delivery_count = 3 "], {}).limits.delivery_count == 3


def test_of_two_sets_the_later_wins(write):
    settings = load_settings(write(REQUIRED), ["cluster=a", "cluster=b"], {})
    assert settings.cluster == "b"


def test_a_part_wins_over_the_whole_among_variables(write):
    variables = {"SHARE_STATE_LIMITS__RECORD_LOCKS": "7", "SHARE_STATE_LIMITS": "{record_locks: 6, delivery_count: 3}"}
    limits = load_settings(write(REQUIRED), (), variables).limits
    assert (limits.record_locks, limits.delivery_count) == (7, 3)


def test_a_whole_replaces_and_a_part_adds(write):
    path = write({**REQUIRED, "rules": {"OFFSET_GAP": "off"}, "limits": {"record_locks": 9}})
    added = load_settings(path, ["rules.TORN_TAIL=info", "limits.delivery_count=3"], {})
    assert added.rules == {"OFFSET_GAP": "off", "TORN_TAIL": "info"}
    assert (added.limits.record_locks, added.limits.delivery_count) == (9, 3)
    replaced = load_settings(path, ["rules={}", "limits={delivery_count: 3}"], {})
    assert replaced.rules == {}
    assert (replaced.limits.record_locks, replaced.limits.delivery_count) == (2000, 3)


def test_items_are_changed_and_added_by_number(write):
    path = write({**REQUIRED, "sources": [{"path": "/a", "format": "segments"}, {"path": "/b"}]})
    settings = load_settings(path, ["sources.0.path=/x", "sources.2.path=/c"], {})
    assert [(source.path, source.format) for source in settings.sources] == [
        ("/x", "segments"),
        ("/b", "auto"),
        ("/c", "auto"),
    ]


def test_more_than_ten_items_come_in_the_order_of_their_numbers():
    variables = {f"SHARE_STATE_SOURCES__{number}__PATH": f"/{number}" for number in range(12)}
    settings = load_settings(None, ["warehouse=/lake"], variables)
    assert [source.path for source in settings.sources] == [f"/{number}" for number in range(12)]


def test_an_item_that_yaml_repeats_is_changed_once(write):
    path = write("sources: [&one {path: /a}, *one]\nwarehouse: /lake\n")
    settings = load_settings(path, ["sources.0.path=/x"], {})
    assert [source.path for source in settings.sources] == ["/x", "/a"]


def test_names_of_spark_settings_keep_their_dots(write):
    settings = load_settings(write(REQUIRED), ["spark.conf.spark.driver.memory=4g", "spark.conf.a=b=c"], {})
    assert settings.spark.conf == {"spark.driver.memory": "4g", "a": "b=c"}


def test_a_rule_is_set_by_its_code_in_a_variable(write):
    assert load_settings(write(REQUIRED), (), {"SHARE_STATE_RULES__OFFSET_GAP": "off"}).rules == {"OFFSET_GAP": "off"}


@pytest.mark.parametrize("nothing", ["", "null", "~"])
def test_nothing_brings_the_default_back(write, nothing):
    path = write({**REQUIRED, "report": {"html": "x.html"}, "limits": {"delivery_count": 3}})
    settings = load_settings(path, [f"report.html={nothing}"], {"SHARE_STATE_LIMITS__DELIVERY_COUNT": nothing})
    assert settings.report.html is None
    assert settings.limits.delivery_count == 5


def test_no_file_is_needed_where_variables_say_enough():
    variables = {"SHARE_STATE_SOURCES": '[{"path": "/a"}]', "SHARE_STATE_WAREHOUSE": "/lake"}
    assert load_settings(None, (), variables) == settings_for(["/a"], "/lake", (), {})


def test_a_call_with_inputs_stands_between_set_and_variable():
    variables = {
        "SHARE_STATE_SOURCES": "[{path: /theirs}, {path: /more}]",
        "SHARE_STATE_WAREHOUSE": "/theirs",
        "SHARE_STATE_CLUSTER": "blue",
    }
    settings = settings_for(["/a", "/b"], "/out", ["sources.1.format=segments"], variables)
    assert [(source.path, source.format) for source in settings.sources] == [("/a", "auto"), ("/b", "segments")]
    assert (settings.warehouse, settings.cluster) == ("/out", "blue")
    assert settings_for(["/a"], "/out", ["warehouse=/set"], variables).warehouse == "/set"


def test_the_variables_of_this_process_are_read_unless_others_are_given(write, monkeypatch):
    monkeypatch.setenv("SHARE_STATE_CLUSTER", "of-this-process")
    path = write(REQUIRED)
    assert load_settings(path).cluster == "of-this-process"
    assert settings_for(["/a"], "/b").cluster == "of-this-process"
    assert load_settings(path, (), {}).cluster == ""


@pytest.mark.parametrize(
    "name",
    [
        "SHARE_STATE_PHASES",
        "SHARE_STATE_HOME",
        "SHARE_STATE_VERSION",
        "SHARE_STATE_SPARK_HOME",
        "SHARE_STATE_REPORT_DIR",
        "SHARE_STATE_",
        "SHARE_STATE",
        "WAREHOUSE",
    ],
)
def test_variables_of_others_are_left_alone(write, name):
    path = write(REQUIRED)
    assert load_settings(path, (), {name: "x"}) == load_settings(path, (), {})
