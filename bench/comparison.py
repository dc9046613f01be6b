"""One export through both sides, alternating, and where their states differ."""

from dataclasses import dataclass

from bench.contestants import Contestant, Pass
from bench.exports import Export


@dataclass(frozen=True, slots=True)
class Comparison:
    """The measured passes of both sides over one export, in the order they ran: Kafka's, ours, Kafka's, ours.

    Attributes:
        export: what was replayed.
        kafka: Kafka's passes.
        ours: this project's.
        difference: the first share-partition whose state differs, None where the digests agree.
    """

    export: Export
    kafka: list[Pass]
    ours: list[Pass]
    difference: str | None


def compared(kafka: Contestant, ours: Contestant, export: Export, *, warm_ups: int, runs: int) -> Comparison:
    """Replay an export by turns.

    Args:
        kafka: Kafka's side, running.
        ours: this project's side, running.
        export: what to replay.
        warm_ups: passes of each side that are not measured.
        runs: passes of each side that are.
    """
    for _ in range(warm_ups):
        kafka.replay(export.folder)
        ours.replay(export.folder)
    passes = [(kafka.replay(export.folder), ours.replay(export.folder)) for _ in range(runs)]
    of_kafka, of_ours = [pair[0] for pair in passes], [pair[1] for pair in passes]
    expected = (of_kafka[0].digest, of_kafka[0].records)
    agree = all((one.digest, one.records) == expected for one in (*of_kafka, *of_ours))
    return Comparison(export, of_kafka, of_ours, None if agree else first_difference(kafka, ours, export))


def first_difference(kafka: Contestant, ours: Contestant, export: Export) -> str:
    """The share-partition with the shortest state among those on which the two sides disagree."""
    theirs, own = kafka.states(export.folder), ours.states(export.folder)
    differing = [key for key in theirs.keys() | own.keys() if theirs.get(key) != own.get(key)]
    if not differing:
        return "the states agree, the number of records read does not"
    key = min(differing, key=lambda key: (len(str(theirs.get(key))), key))
    return f"{len(differing)} share-partitions differ, e.g. {key}: {theirs.get(key)} is Kafka's, {own.get(key)} is ours"
