"""Commands that ask a running cluster: `compare`, and `topics`, which writes the file of `--topics`."""

import logging
import sys
from collections import Counter
from typing import Annotated

import typer

from share_state.cli.command import DONE, FOUND, Quiet, command
from share_state.cli.input_options import InputOptions
from share_state.cli.options import FailOn, Json, fails
from share_state.errors import pluralize
from share_state.report import console

_LOG = logging.getLogger("share_state")


@command("share-state topics /exports/broker-1 --out topics.json")
def topics(
    inputs: Annotated[
        list[str],
        typer.Argument(
            metavar="INPUT...",
            help="Data folders of brokers, kafka://HOST:PORT, or texts of kafka-topics.sh and kafka-get-offsets.sh.",
        ),
    ],
    out: Annotated[
        str | None, typer.Option(metavar="FILE", help="Write to this file; by default to stdout.")
    ] = None,
    *,
    options: InputOptions,
) -> None:
    """Write the topics file for --topics: names and ends.

    It also has ids, partition counts and log starts. Other commands read the facts of a data folder by
    themselves.
    """
    from share_state.sources.kafka_client import SCHEME  # noqa: PLC0415
    from share_state.sources.topics_file import collect_topics, topics_text  # noqa: PLC0415

    if any(one.startswith(SCHEME) for one in inputs):
        from share_state.sources.input_detection import find_cluster_address  # noqa: PLC0415  imports Delta
        from share_state.sources.kafka_client import read_client_properties  # noqa: PLC0415
        from share_state.sources.kafka_cluster import Cluster  # noqa: PLC0415  the client library is an extra

        address = find_cluster_address(inputs) or inputs[0]
        found, notes = Cluster(address, read_client_properties(options.get("kafka_properties"))).topics(), ()
    else:
        found, notes = collect_topics(inputs)
    for note in notes:
        _LOG.info("%s", note)
    if out is None:
        sys.stdout.writelines(topics_text(found))
        return
    console.write_report(out, topics_text(found))
    console.print_line(f"{out}: {pluralize(len(found.names), 'topic')}")


@command("share-state compare /lake/share_state kafka://broker-1:9092")
def compare(
    warehouse: Annotated[
        str,
        typer.Argument(
            metavar="INPUT|WAREHOUSE",
            help="Folder or address of the Delta tables; or an export, which is read with default options.",
        ),
    ],
    cluster: Annotated[str, typer.Argument(metavar="CLUSTER", help="kafka://HOST:PORT[,HOST:PORT...].")],
    options: InputOptions,
    fail_on: FailOn = "error",
    as_json: Json = False,
    quiet: Quiet = False,
) -> int:
    """Compare the tables with the offsets of a running cluster."""
    from share_state.cli.warehouse_or_input import open_tables  # noqa: PLC0415  imports Delta
    from share_state.report.compare import compare as compare_offsets  # noqa: PLC0415  only this command asks a broker
    from share_state.report.compare import list_groups, print_comparison  # noqa: PLC0415
    from share_state.sources.kafka_admin import fetch_broker_offsets  # noqa: PLC0415
    from share_state.sources.kafka_client import bootstrap_servers  # noqa: PLC0415

    # Before an export is read.
    bootstrap_servers(cluster)
    with open_tables(warehouse, quiet=quiet) as tables:
        answers = fetch_broker_offsets(cluster, options.get("kafka_properties"), list_groups(tables))
        found = compare_offsets(tables, answers)
    console.print_json(found | {"warehouse": warehouse, "cluster": cluster}) if as_json else print_comparison(
        found
    )
    return FOUND if fails(Counter(one["severity"] for one in found["findings"]), fail_on) else DONE
