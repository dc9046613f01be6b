"""`share-state simulate`: generated or replayed histories as real segments, with the expected state."""

import json
from dataclasses import astuple
from pathlib import Path
from textwrap import fill
from typing import Annotated, Any, Literal

import typer

from share_state.cli.command import DONE, FOUND, command
from share_state.cli.completion import complete_release
from share_state.cli.options import Json, pairs
from share_state.errors import pluralize
from share_state.kafka.releases import LATEST, SIMULATED
from share_state.report.console import print_json, print_line, print_table
from share_state.simulator.faults import FAULTS
from share_state.simulator.group_side import GROUP_PARTITIONS
from share_state.simulator.simulation import Simulation
from share_state.simulator.simulation import simulate as simulated

# Wrapped here: typer would break names at their hyphens.
_FAULTS = fill(", ".join(sorted(FAULTS)), 46, break_on_hyphens=False)


@command(
    "share-state simulate --out history --seed 7, or --out replay --requests kafka-request.log --release 4.3"
)
def simulate(
    out: Annotated[
        str, typer.Option(metavar="DIR", help="Folder for the logs and their true state; new or empty.")
    ],
    events: Annotated[
        str | None, typer.Option(metavar="FILE", help="Play the events of this file (JSON lines).")
    ] = None,
    requests: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Replay the ShareFetch and ShareAcknowledge requests of a broker's request log, and compare the "
            "outcomes with the logged responses; exit code 1 if one differs.",
        ),
    ] = None,
    group_configs: Annotated[
        list[str] | None,
        typer.Option(
            "--group-config",
            metavar="K=V",
            help="Set a config of every group, such as share.delivery.count.limit=10.",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(metavar="N", help="Seed of the random generator.")] = 0,
    groups: Annotated[int, typer.Option(metavar="N", help="Number of share groups.")] = 8,
    minutes: Annotated[int, typer.Option(metavar="N", help="Simulated minutes.")] = 10,
    dialect: Annotated[
        Literal["share_group_state", "control_records", "both"],
        typer.Option(metavar="share_group_state|control_records|both", help="Records to write."),
    ] = "share_group_state",
    faults: Annotated[
        list[str] | None,
        typer.Option(
            "--fault",
            metavar="NAME",
            help=f"Plant a fault (repeatable); faults.jsonl lists the findings. One of all or:\n\n\b\n{_FAULTS}",
        ),
    ] = None,
    release: Annotated[
        str,
        typer.Option(
            metavar="|".join(SIMULATED),
            help="Kafka release of the brokers.",
            autocompletion=complete_release,
        ),
    ] = LATEST.name,
    state_partitions: Annotated[
        int, typer.Option(metavar="N", help="Partitions of __share_group_state.")
    ] = 50,
    updates_per_snapshot: Annotated[
        int, typer.Option(metavar="N", help="Updates before the next snapshot.")
    ] = 500,
    checkpoint_every: Annotated[
        int, typer.Option(metavar="N", help="control_records: deltas before the next checkpoint.")
    ] = 10,
    checkpoint_at_end: Annotated[
        bool,
        typer.Option(
            "--checkpoint-at-end",
            help="control_records: also write a checkpoint when nothing is in flight (SPSO = SPEO).",
        ),
    ] = False,
    control_offsets_as_gaps: Annotated[
        bool,
        typer.Option(
            "--control-offsets-as-gaps",
            help="control_records: members acknowledge the offsets of control records as gaps, as with both dialects; "
            "otherwise no fetch acquires them.",
        ),
    ] = False,
    codec: Annotated[
        Literal["none", "gzip", "snappy", "lz4", "zstd"],
        typer.Option(metavar="none|gzip|snappy|lz4|zstd", help="Compression of the record batches."),
    ] = "none",
    prune: Annotated[bool, typer.Option("--prune", help="Let the brokers delete redundant records.")] = False,
    trace: Annotated[
        bool,
        typer.Option(
            "--trace", help="Also write the result of every event and the state after every record."
        ),
    ] = False,
    consumer_offsets: Annotated[
        bool,
        typer.Option(
            "--consumer-offsets",
            help="Also write `__consumer_offsets`: the members of the groups, with epochs and assignments.",
        ),
    ] = False,
    group_partitions: Annotated[
        int, typer.Option(metavar="N", help="Partitions of __consumer_offsets.")
    ] = GROUP_PARTITIONS,
    as_json: Json = False,
) -> int:
    """Write logs of simulated share groups, with their true state.

    The share-partition state machine generates the histories, which are written as real log segments.
    """
    simulation = simulated(
        Path(out),
        events=None if events is None else Path(events),
        requests=None if requests is None else Path(requests),
        group_configs=pairs(group_configs, "--group-config"),
        seed=seed,
        groups=groups,
        minutes=minutes,
        dialect=dialect,
        faults=faults or (),
        release=release,
        state_partitions=state_partitions,
        updates_per_snapshot=updates_per_snapshot,
        checkpoint_every=checkpoint_every,
        checkpoints_at_end=checkpoint_at_end,
        control_offsets_as_gaps=control_offsets_as_gaps,
        codec=codec,
        prunes=prune,
        traces=trace,
        consumer_offsets=consumer_offsets,
        group_partitions=group_partitions,
    )
    print_json(_to_json(simulation)) if as_json else _print_result(simulation)
    return FOUND if simulation.mismatches else DONE


def _to_json(result: Simulation) -> dict[str, Any]:
    """A simulation as plain data."""
    return {
        "folder": str(result.folder),
        "events": result.events,
        "records": result.records,
        "share_partitions": result.share_partitions,
        "acknowledgements": dict(result.acknowledgements),
        "faults": [json.loads(planted.to_json()) for planted in result.planted],
        "mismatches": [json.loads(mismatch.to_json()) for mismatch in result.mismatches],
    }


def _print_result(result: Simulation) -> None:
    """Print the size of a simulation and, per planted fault, the finding that it must cause."""
    events, records = pluralize(result.events, "event"), pluralize(result.records, "record")
    print_line(f"{events} produced {records} of {pluralize(result.share_partitions, 'share-partition')}")
    if result.planted:
        rows = [
            [one.fault, one.finding, f"{one.log[0]}-{one.log[1]}", one.offset, one.group]
            for one in result.planted
        ]
        print_table(["FAULT", "CAUSES", "LOG", "OFFSET", "GROUP"], rows, numeric=("OFFSET",))
    if result.mismatches:
        print_line(
            f"logged outcomes that the simulation contradicts (OUTCOME_MISMATCH): {len(result.mismatches):,}"
        )
        rows = [[*astuple(one)] for one in result.mismatches]
        columns = ("LINE", "REQUEST", "GROUP", "TOPIC-ID", "PARTITION", "LOGGED", "SIMULATED", "REASON")
        print_table(columns, rows, numeric=("LINE", "PARTITION"))
    print_line(
        f"logs, events and the truth are in {result.folder}: `share-state audit {result.folder} --out WAREHOUSE`"
    )
