"""A cluster audited night after night: read whole each time, nothing told twice, and as its segments tell it."""

from contextlib import nullcontext
from pathlib import Path

import pytest

from share_state.config.input_spec import KEYS
from share_state.config.loading import settings_for
from share_state.config.model import config_fingerprint
from share_state.delta.reader import CommittedTables
from share_state.delta.warehouse_place import GROUP_TABLES
from share_state.pipeline.audit import run_audit
from share_state.pipeline.executor import Executor
from share_state.pipeline.planning import build_plan
from share_state.pipeline.result import RunResult
from tests.profiles import driver_alone
from tests.sources.kafka_cluster.broker import PASSWORDS, properties_of
from tests.sources.kafka_cluster.workload import Workload

pytestmark = pytest.mark.broker


@driver_alone
def test_a_cluster_is_audited_twice(tasks: Executor, worked: Workload, tmp_path: Path) -> None:
    properties = properties_of(worked.broker, "auditor", tmp_path)

    def run(source: str, lake: str, *overrides: str) -> RunResult:
        settings = settings_for([source], str(tmp_path / lake), ["state_partitions=3", *overrides])
        plan = build_plan(settings.input_spec(), KEYS)
        return run_audit(
            lambda _: nullcontext(tasks),
            plan,
            settings.warehouse,
            inputs=(source,),
            options=config_fingerprint(settings),
        )

    of_cluster = (f"kafka://{worked.broker.secured}", "live", f"sources.0.kafka_properties={properties}")
    first, second = run(*of_cluster), run(*of_cluster)
    assert second.records >= first.records > 0
    run(str(worked.broker.logs), "segments", "groups.partitions=50")
    live, segments = (CommittedTables(str(tmp_path / lake)) for lake in ("live", "segments"))
    assert _contents(live) == _contents(segments)
    for name in GROUP_TABLES:
        assert live.read(name).equals(segments.read(name)), name
    assert len(live.read("share_groups")) == len(worked.groups)
    assert PASSWORDS["auditor"] not in str(live.runs.to_pylist())


def _contents(tables: CommittedTables) -> list[list[str]]:
    """State and findings about it as text, without the names of topics, which only the cluster tells."""
    hidden = ("topic", "topic_end_offset", "run_id")
    rows = {name: tables.read(name).to_pylist() for name in ("share_partition_state", "in_flight", "findings")}
    rows["findings"] = [row for row in rows["findings"] if row["state_partition"] is not None]
    plain = ([{name: row[name] for name in row if name not in hidden} for row in table] for table in rows.values())
    return [sorted(map(repr, table)) for table in plain]
