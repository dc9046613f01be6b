"""What `share-state simulate` made, in a few lines."""

import json
from typing import TYPE_CHECKING, Any

from share_state.report.console import print_table, say

if TYPE_CHECKING:
    from share_state.partition.simulation import Simulation


def simulation_json(made: "Simulation") -> dict[str, Any]:
    """The simulation as plain data."""
    return {
        "folder": str(made.folder),
        "events": made.events,
        "records": made.records,
        "share_partitions": made.share_partitions,
        "faults": [json.loads(planted.to_json()) for planted in made.planted],
    }


def print_simulation(made: "Simulation") -> None:
    """Print what was played and written, and the finding that each planted fault must cause."""
    say(f"{made.events:,} events left {made.records:,} records of {made.share_partitions:,} share-partitions")
    if made.planted:
        rows = [[one.fault, one.finding, f"{one.log[0]}-{one.log[1]}", one.offset, one.group] for one in made.planted]
        print_table(["FAULT", "CAUSES", "LOG", "OFFSET", "GROUP"], rows, numeric=("OFFSET",))
    say(f"logs, events and the truth are in {made.folder}: `share-state audit {made.folder} --out WAREHOUSE`")
