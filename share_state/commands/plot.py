"""`share-state plot`: one picture of a log."""

from typing import Annotated

import typer

from share_state.commands.app import command
from share_state.commands.options import DeliveryLimit, Inputs, Json, Reading
from share_state.commands.reading import work_of
from share_state.fold.chosen import Chosen
from share_state.plots.drawn import drawn
from share_state.plots.saved import checked, save
from share_state.report import console


@command("share-state plot window /exports/broker-1 --group app --topic orders --partition 0 --out w.html")
def plot(
    what: Annotated[str, typer.Argument(metavar="WHAT", help="window, offsets, deliveries or cutoff.")],
    inputs: Inputs,
    out: Annotated[str, typer.Option("--out", metavar="FILE", help="A name that ends in .html, .svg or .png.")],
    group: Annotated[str | None, typer.Option(help="The share group.")] = None,
    topic: Annotated[str | None, typer.Option(help="The topic (name or id).")] = None,
    partition: Annotated[int | None, typer.Option(help="The partition of the topic.")] = None,
    *,
    reading: Reading,
    delivery_limit: DeliveryLimit = None,
    as_json: Json = False,
) -> None:
    """Draw one picture: the in-flight window, offsets over time, delivery counts, or cutoff against log."""
    checked(out)
    chart = drawn(what, work_of(inputs, reading), Chosen(group, topic, partition), delivery_limit)
    save(chart, out)
    told = {"picture": what, "of": chart.heading, "file": out, "says": chart.says}
    console.print_json(told) if as_json else console.say(f"{out}: {console.printable(chart.says)}")
