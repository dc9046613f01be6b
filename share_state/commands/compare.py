"""`share-state compare`: what a broker answers beside what its log says."""

from typing import Annotated

import typer
from typer.exceptions import Exit

from share_state.commands.app import DONE, FOUND, command
from share_state.commands.judging import check_fail_on, fails
from share_state.commands.options import FailOn, Json, KafkaProperties
from share_state.live import ask_broker
from share_state.report import console
from share_state.report.compare import compare as compared
from share_state.report.compare import counted, groups_of, print_compared
from share_state.spark import jars


@command("share-state compare /lake/share_state kafka://broker-1:9092")
def compare(
    warehouse: Annotated[str, typer.Argument(metavar="WAREHOUSE", help="Folder of the Delta tables.")],
    cluster: Annotated[str, typer.Argument(metavar="CLUSTER", help="kafka://HOST:PORT[,HOST:PORT...].")],
    kafka_properties: KafkaProperties = None,
    fail_on: FailOn = "error",
    as_json: Json = False,
) -> None:
    """What the broker answers beside what the log says."""
    check_fail_on(fail_on)
    groups = groups_of(warehouse)
    found = compared(warehouse, ask_broker(cluster, kafka_properties, jars.jars(jars.KAFKA_CLIENTS), groups))
    console.print_json(found | {"warehouse": warehouse, "cluster": cluster}) if as_json else print_compared(found)
    raise Exit(FOUND if fails(counted(found), fail_on) else DONE)
