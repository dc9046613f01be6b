"""Airflow 3: the nightly audit. The worker needs the `share-state` command (docs/deploy.md).

Findings and an unusable configuration fail the task at once; any other failure is retried.
"""

import subprocess
from datetime import datetime, timedelta

from airflow.sdk import dag, task
from airflow.sdk.exceptions import AirflowFailException

COMMAND = ["share-state", "audit", "--config", "/etc/share-state/audit.yaml"]
FOUND, UNUSABLE = 1, 2


@dag(
    schedule="30 3 * * *",
    start_date=datetime(2026, 1, 1),
    catchup=False,  # an audit reads all that is new since the last one
    max_active_runs=1,  # a warehouse takes one writer
    default_args={"retries": 2, "retry_delay": timedelta(minutes=5), "execution_timeout": timedelta(hours=4)},
    tags=["kafka"],
)
def share_state_audit() -> None:
    """Audit one cluster every night."""

    @task
    def audit() -> None:
        code = subprocess.run(COMMAND, check=False).returncode
        if code == FOUND:
            raise AirflowFailException("the audit has findings: its report is printed above")
        if code == UNUSABLE:
            raise AirflowFailException("the audit could not run: its last line says what to change")
        if code:
            raise RuntimeError(
                f"share-state ended with {code}; the next attempt continues from the last commit"
            )

    audit()


share_state_audit()
