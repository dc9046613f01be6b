"""`share-state plot`: folds what one picture needs, and draws it."""

from dataclasses import replace

import pyarrow as pa

from share_state.committed import of_key
from share_state.declarations import table_schema
from share_state.errors import ShareStateError
from share_state.fold.chosen import Chosen
from share_state.plots.chart import Chart
from share_state.plots.cutoffs import cutoffs
from share_state.plots.deliveries import deliveries
from share_state.plots.offsets import offsets
from share_state.plots.window import window
from share_state.work import Work

WINDOW, OFFSETS, DELIVERIES, CUTOFF = "window", "offsets", "deliveries", "cutoff"
PICTURES = (WINDOW, OFFSETS, DELIVERIES, CUTOFF)


def drawn(what: str, work: Work, chosen: Chosen, delivery_limit: int | None) -> Chart:
    """Fold logs and draw one picture of them.

    Args:
        what: one of PICTURES.
        work: the log partitions, and which of their records count.
        chosen: the share-partitions; one of them for a picture over time, none for the cutoff.
        delivery_limit: of the group, for DELIVERIES.
    Raises:
        ShareStateError: if there is no such picture, or nothing to draw.
        InputError: if a segment cannot be read.
    """
    if what not in PICTURES:
        raise ShareStateError(f"plot {what}: no such picture; give one of {', '.join(PICTURES)}")
    if what == CUTOFF:
        return cutoffs(pa.concat_tables([one.cutoff for one in work.each()]))
    if what == DELIVERIES:
        where = of_key(chosen.group_id, chosen.topic, chosen.partition)
        in_flight = pa.concat_tables([one.in_flight for one in work.each()])
        return deliveries(in_flight if where is None else in_flight.filter(where), limit=delivery_limit)
    work = replace(work, timeline=chosen)
    states = [table for log in work.logs for table in work.states_of(log)]
    return {WINDOW: window, OFFSETS: offsets}[what](pa.concat_tables([table_schema("timeline").empty_table(), *states]))
