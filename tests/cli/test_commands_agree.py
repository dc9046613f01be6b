"""A command says the same of logs and of the tables that `reconstruct`, `audit` and `stream` wrote of them."""

from pathlib import Path
from random import Random
from typing import Any, cast

import pytest

from share_state.config.sections import LimitSettings
from share_state.pipeline.live_groups import LiveGroups
from share_state.sources.group_configs import ClusterLimits
from share_state.sources.kafka_client import ClientProperties
from tests.cli.commands import Command
from tests.damage.damage import KINDS
from tests.damage.exports import RELEASES, whole_export
from tests.profiles import nightly, some_of
from tests.truth import DATA

LIMIT = "group.share.delivery.count.limit=6\n"
_OF_VERDICTS = ("cause", "since", "trouble", "others", "healthy", "verdict", "unknown", "option", "also", "time")
"""Keys of `why` that need verdicts, which a reconstruct does not give."""


def _write(way: str, logs: Path, out: Path, cli: Command) -> Path:
    """The tables that a command writes of logs."""
    more = ("--once",) if way == "stream" else ()
    assert cli(way, logs, "--out", out, "--fail-on", "off", "-q", *more).code in (0, 1)
    return out


def _why(cli: Command, group: str, *inputs: object) -> dict[str, Any]:
    """What `why` says, without the commands, which name the input."""
    said = cli("why", group, *inputs, "--json", "-q").json
    option = said["option"] and {name: value for name, value in said["option"].items() if name != "command"}
    return {**said, "commands": None, "option": option}


def _without_verdicts(said: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in said.items() if name not in _OF_VERDICTS}


def _in_trouble(cli: Command, *inputs: object) -> list[tuple[Any, ...]]:
    """What `repair` says of each share-partition, and the actions that it names."""
    rows = cli("repair", *inputs, "--json", "-q").json["share_partitions"]
    key = ("group_id", "topic_id", "partition", "sentence")
    return [(*(row[name] for name in key), [one["action"] for one in row["options"]]) for row in rows]


@nightly("three runs, and nine commands over their tables")
@pytest.mark.parametrize("seed", some_of(range(100), 3))
def test_why_and_repair_of_a_warehouse_say_what_they_say_of_its_logs(cli: Command, tmp_path: Path, seed: int):
    logs = tmp_path / "logs"
    whole_export(RELEASES[~seed % len(RELEASES)], seed).write(logs)
    (logs / "server.properties").write_text(LIMIT)
    lakes = {way: _write(way, logs, tmp_path / way, cli) for way in ("reconstruct", "audit", "stream")}
    group = cli("show", lakes["audit"], "--json").json["share_partitions"][0]["group_id"]
    of_logs = _why(cli, group, logs)
    assert of_logs["delivery_limit"] == 6
    assert _why(cli, group, lakes["audit"]) == of_logs
    assert _why(cli, group, lakes["stream"]) == of_logs
    key = ("--topic", of_logs["topic_id"], "--partition", of_logs["partition"])
    of_tables = _why(cli, group, lakes["reconstruct"], *key)
    assert _without_verdicts(of_tables) == _without_verdicts(of_logs)
    for way in ("audit", "stream"):
        assert _in_trouble(cli, lakes[way]) == _in_trouble(cli, logs)


def test_a_stream_keeps_the_limits_by_which_it_judged(cli: Command, tmp_path: Path):
    logs = tmp_path / "logs"
    whole_export("4.3", 1).write(logs)
    (logs / "server.properties").write_text(LIMIT)
    lake = _write("stream", logs, tmp_path / "lake", cli)
    facts = {one["fact"]: one["value"] for one in cli("show", lake, "--cluster", "--json").json["facts"]}
    assert facts["delivery_count"] == "6"
    group = cli("show", lake, "--json").json["share_partitions"][0]["group_id"]
    assert _why(cli, group, lake)["delivery_limit"] == 6


def test_limits_of_a_call_precede_those_of_a_running_cluster():
    class Brokers:
        def fetch_limits(self, groups: frozenset[str]) -> ClusterLimits:
            return ClusterLimits({"delivery_count": 3, "record_locks": 400})

    limits = LimitSettings(delivery_count=7).to_limits()
    groups = LiveGroups(cast("Any", Brokers()), ClientProperties(), limits, frozenset({"delivery_count"}))
    assert (groups.limits.delivery_count, groups.limits.record_locks) == (7, 400)
    assert groups.origins["limits.of_cluster.record_locks"] == "400"
    assert "limits.of_cluster.delivery_count" not in groups.origins


def test_the_cutoff_of_a_warehouse_sees_damage_behind_the_last_record(cli: Command, tmp_path: Path):
    export = whole_export("4.2", 1).copied()
    KINDS["garbage_after"](export, "__share_group_state-2", Random(1))
    logs = tmp_path / "logs"
    export.write(logs)
    lake = _write("reconstruct", logs, tmp_path / "lake", cli)
    of_logs = cli("cutoff", logs, "-q")
    assert of_logs.code == 1
    of_tables = cli("cutoff", lake, "-q")
    assert (of_tables.code, of_tables.out) == (of_logs.code, of_logs.out)


def test_a_warehouse_of_texts_without_offsets_stands_for_them(cli: Command, tmp_path: Path):
    text = DATA / "cases/console-claims/strimzi.json"
    lake = _write("reconstruct", text, tmp_path / "lake", cli)
    for command in ("cutoff", "decode"):
        of_tables = cli(command, lake, "-q")
        assert (of_tables.code, of_tables.out) == (0, cli(command, text, "-q").out)
