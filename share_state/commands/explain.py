"""`share-state explain`: what became of one offset."""

from dataclasses import replace
from typing import Annotated

import typer

from share_state.commands.app import command
from share_state.commands.options import DeliveryLimit, Folding, Inputs, Json, Reading
from share_state.commands.reading import work_of
from share_state.report import console
from share_state.report.explain import explained, print_explained


@command("share-state explain /exports/broker-1 --group app --topic orders --partition 0 --offset 4711")
def explain(
    inputs: Inputs,
    group: Annotated[str, typer.Option(help="The share group.")],
    topic: Annotated[str, typer.Option(help="The topic (name or id).")],
    partition: Annotated[int, typer.Option(help="The partition of the topic.")],
    offset: Annotated[int, typer.Option(help="The offset to explain.")],
    reading: Reading,
    folding: Folding,
    delivery_limit: DeliveryLimit = 5,
    as_json: Json = False,
) -> None:
    """What became of one offset: every record that touched it, and how it stands."""
    work = work_of(inputs, reading, folding)
    work = replace(work, limits=replace(work.limits, delivery_count=delivery_limit))
    found = explained(work, inputs, group, topic, partition, offset)
    console.print_json(found) if as_json else print_explained(found)
