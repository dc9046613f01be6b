"""What YAML does to values is undone, and what was configured can be told again."""

import json
import subprocess
import sys
from dataclasses import fields
from typing import get_args

import pytest
from pydantic import ValidationError

from share_state.config.loading import load_settings, settings_for
from share_state.config.sections import Column, Dialect, FileFormat, Format
from share_state.errors import ShareStateError
from share_state.fold.limits import Limits
from share_state.kafka.releases import RELEASES, release_of
from share_state.sources.discovery import DIALECTS
from share_state.sources.formats import AUTO, format_names
from share_state.sources.kafka_client import KAFKA_FORM
from share_state.sources.record_tables import Columns
from tests.config.settings_text import REQUIRED, in_yaml

LINES = "sources: [{path: /exports/one}]\nwarehouse: /lake\n"


@pytest.mark.parametrize("off", ["off", "OFF", "Off", "false", "False", "'off'", '"off"'])
def test_off_is_off_however_yaml_takes_it(write, off):
    settings = load_settings(write(f"{LINES}fail_on: {off}\nrules: {{OFFSET_GAP: {off}}}\n"), (), {})
    assert (settings.fail_on, settings.rules) == ("off", {"OFFSET_GAP": "off"})
    settings = load_settings(write(LINES), [f"fail_on={off}"], {"SHARE_STATE_RULES": f'{{"OFFSET_GAP": {off}}}'})
    assert (settings.fail_on, settings.rules) == ("off", {"OFFSET_GAP": "off"})


@pytest.mark.parametrize(
    ("version", "release"), [("4.4.0", "4.4"), ("4.2.0", "4.2.0"), ("4.2.2", "4.2"), ("4.3.7", "4.3")]
)
def test_a_version_stands_for_its_release(write, version, release):
    path = write(f"{LINES}limits: {{writer_version: {version}}}\n")
    limits = load_settings(path, (), {}).limits
    assert limits.writer_version == release
    assert limits.to_limits().writer is release_of(version)


@pytest.mark.parametrize("version", ["4.4.x", "4", "4.4.0.1", " 4.4", "4.5.0"])
def test_what_is_no_version_is_refused(write, version):
    with pytest.raises(ShareStateError, match="writer_version"):
        load_settings(write(f"{LINES}limits: {{writer_version: '{version}'}}\n"), (), {})


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("quote", ["", "'", '"'])
def test_a_release_is_no_number(write, release, quote):
    path = write(f"{LINES}limits: {{writer_version: {quote}{release}{quote}}}\n")
    assert load_settings(path, (), {}).limits.writer_version == release


@pytest.mark.parametrize(
    "text", ["007", "12", "no", "on", "4.10", "1:30", "0x1F", "1_000", "2026-11-21", "true", "1e3"]
)
def test_text_stays_as_it_is_written(write, text):
    settings = load_settings(write(f"{LINES}cluster: {text}\nspark: {{conf: {{a.b: {text}}}}}\n"), (), {})
    assert (settings.cluster, settings.spark.conf) == (text, {"a.b": text})


def test_a_quoted_number_is_a_number_where_one_is_due(write):
    settings = load_settings(write(f"{LINES}limits: {{delivery_count: '3', stall_minutes: \"0.5\"}}\n"), (), {})
    assert (settings.limits.delivery_count, settings.limits.stall_minutes) == (3, 0.5)


def test_keys_and_sections_without_a_value_are_as_good_as_not_there(write):
    empty = "cluster:\nlimits:\n  #delivery_count: 5\nrules: ~\nreport: {html: null}\nspark: {conf: }\ntopics:\n"
    assert load_settings(write(LINES + empty), (), {}) == load_settings(write(LINES), (), {})


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_utf_8_is_read_with_and_without_its_mark(write, mark):
    path = write(mark + f"{LINES}cluster: Küche\n".encode())
    assert load_settings(path, (), {}).cluster == "Küche"


def test_json_with_escapes_is_read_as_it_is_meant(write):
    given = json.dumps({**REQUIRED, "cluster": "\U0001f600 Küche", "spark": {"conf": {"\U0001f600": "x"}}})
    assert "\\ud83d\\ude00" in given
    settings = load_settings(write(given), (), {})
    assert (settings.cluster, settings.spark.conf) == ("\U0001f600 Küche", {"\U0001f600": "x"})


def test_the_defaults_are_those_of_the_fold_and_of_kafka():
    settings = settings_for(["/a"], "/b", (), {})
    # Only an audit judges the age of an export.
    assert settings.limits.to_limits() == Limits(export_age=36)
    rest = settings.model_dump(exclude={"sources", "warehouse", "limits"})
    assert rest == {
        "cluster": "",
        "state_partitions": None,
        "topics": None,
        "groups": {
            "paths": None,
            "format": "auto",
            "columns": {},
            "partitions": None,
            "claims": "history",
            "members": 200,
            "retry_seconds": 30,
            "delete_grace_seconds": 300,
        },
        "control_records": {
            "mode": "strict",
            "subscriptions": None,
            "ignore_uncheckpointed": False,
            "full_read_every": 7,
            "index": None,
        },
        "dead_letters": [],
        "dead_letters_copied_last": False,
        "clock": "log",
        "rules": {},
        "fail_on": "error",
        "fail_on_verdict": "none",
        "acknowledged": [],
        "report": {"html": None, "index": None, "prometheus": None, "prometheus_share_partitions": 2000},
        "retention": {"history_days": 90, "replaced_files_days": 7},
        "spark": {"master": None, "conf": {}},
    }


def test_every_limit_reaches_the_fold():
    chosen = {
        "delivery_count": 1,
        "record_locks": 2,
        "updates_per_snapshot": 3,
        "chain_length": 4,
        "stall_minutes": 5.5,
        "pinned_records": 6,
        "writer_version": "4.2",
        "archiving_seconds": 7.5,
        "groups": {"orders.app": {"delivery_count": 10}, "slow": {"record_locks": 8, "delivery_count": 2}},
        "batch_bytes": 7,
        "giving_up_minutes": 8.5,
        "poison_ratio": 0.5,
        "retention_ratio": 0.5,
        "export_age": 9.5,
    }
    assert settings_for(["/a"], "/b", [f"limits={in_yaml(chosen)}"], {}).limits.to_limits() == Limits(**chosen)


def test_settings_do_not_change():
    settings = settings_for(["/a"], "/b", (), {})
    with pytest.raises(ValidationError, match="frozen"):
        settings.warehouse = "/c"
    with pytest.raises(ValidationError, match="frozen"):
        settings.limits.delivery_count = 1


def test_what_is_told_is_every_path_and_what_differs_from_its_default(write):
    path = write(
        {
            **REQUIRED,
            "topics": "topics.json",
            "limits": {"delivery_count": 5, "stall_minutes": 2, "writer_version": "4.4"},
            "clock": "wall",
            "rules": {"OFFSET_GAP": "off"},
            "fail_on": "error",
            "report": {"html": "r.html"},
            "spark": {"conf": {"spark.driver.memory": "4g"}},
        }
    )
    assert load_settings(path, ["sources.1={path: /two, format: segments, dialect: auto}"], {}).describe() == {
        "sources.0.path": "/exports/one",
        "sources.1.path": "/two",
        "sources.1.format": "segments",
        "warehouse": "/lake",
        "topics": "topics.json",
        "limits.stall_minutes": "2.0",
        "limits.writer_version": "4.4",
        "clock": "wall",
        "rules.OFFSET_GAP": "off",
        "report.html": "r.html",
        "spark.conf.spark.driver.memory": "4g",
    }


@pytest.mark.parametrize(
    "name", ["spark.hadoop.fs.s3a.secret.key", "spark.hadoop.fs.s3a.access.key", "spark.my.PASSWORD", "x.token.y"]
)
def test_a_secret_that_is_there_all_the_same_is_not_told(name):
    told = settings_for(["/a"], "/b", [f"spark.conf.{name}=hush"], {}).describe()
    assert told[f"spark.conf.{name}"] == "(hidden)"
    assert "hush" not in str(told)


def test_formats_and_dialects_are_those_of_the_other_commands():
    assert {*get_args(Format)} == {AUTO, *format_names(), KAFKA_FORM}
    assert {*get_args(FileFormat)} == {AUTO, *format_names()}
    assert {*get_args(Column)} == {field.name for field in fields(Columns)}
    assert get_args(Dialect) == DIALECTS


def test_nothing_heavy_is_imported():
    code = "import sys, share_state.config; print(*sorted({'pyspark', 'delta', 'deltalake', 'typer'} & {*sys.modules}))"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout.split() == []
