"""`share-state topics`: writes the topics file, which `--topics` of other commands takes."""

import json
import logging
from typing import Annotated

import typer

from share_state.cli.main import command
from share_state.cli.options import KafkaProperties
from share_state.errors import pluralize

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
    out: Annotated[str | None, typer.Option(metavar="FILE", help="Write to this file; by default to stdout.")] = None,
    kafka_properties: KafkaProperties = None,
) -> None:
    """Write the topics file for --topics: names and ends.

    It also has ids, partition counts and log starts. Other commands read the facts of a data folder by themselves.
    """
    from share_state.report import console  # noqa: PLC0415
    from share_state.sources.kafka_client import SCHEME  # noqa: PLC0415
    from share_state.sources.topics_file import collect_topics, topics_document  # noqa: PLC0415

    if any(one.startswith(SCHEME) for one in inputs):
        from share_state.pipeline.inputs import find_cluster_address  # noqa: PLC0415  imports Delta
        from share_state.sources.kafka_client import read_client_properties  # noqa: PLC0415
        from share_state.sources.kafka_cluster import Cluster  # noqa: PLC0415  the client library is an extra

        address = find_cluster_address(inputs) or inputs[0]
        found, notes = Cluster(address, read_client_properties(kafka_properties)).topics(), ()
    else:
        found, notes = collect_topics(inputs)
    for note in notes:
        _LOG.info("%s", note)
    document = topics_document(found)
    if out is None:
        console.print_json(document)
        return
    console.write_report(out, json.dumps(document, indent=2) + "\n")
    console.print_line(f"{out}: {pluralize(len(document), 'topic')}")
