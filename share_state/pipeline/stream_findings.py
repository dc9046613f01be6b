"""The findings of a stream after a micro-batch: settled ones stay, those of the logs that were read are replaced."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import gcd
from operator import itemgetter

import pyarrow as pa
import pyarrow.compute as pc

from share_state.fold.checkpoint import FoldCheckpoint
from share_state.fold.history import HISTORY_TABLE, add_verdicts
from share_state.fold.limits import Limits
from share_state.fold.states import SHARE_GROUP_STATE, compute_lags
from share_state.pipeline.extents import start_notes
from share_state.pipeline.result import START_NOTE, TAIL_NOTE, keep_proven
from share_state.pipeline.stream_changes import COMPLETE, LogChanges
from share_state.pipeline.task import FINDINGS
from share_state.rules.breaches import OFF
from share_state.rules.findings import cap_findings, findings
from share_state.rules.registry import Scope, registered
from share_state.schema.declarations import table_schema
from share_state.sources.new_records import Listing
from share_state.sources.partition_count import key_modulus, state_partition_coverage
from share_state.sources.topics import Topics

_UNREADABLE = "LOG_UNREADABLE"

IS_OF_LETTERS = pc.field("rule").isin(
    [code for code, one in registered().items() if Scope.DEAD_LETTERS in one.checks]
)
"""A filter for the rows of `findings` about dead letters."""

IS_OF_INPUT = pc.field("rule").isin([code for code, one in registered().items() if Scope.INPUT in one.checks])
"""A filter for the rows of `findings` about the input as a whole."""


def shown_times(
    changes: Sequence[LogChanges], archiving: tuple[str, int, int] | None, log_time: int | None
) -> tuple[tuple[str, int, int] | None, int]:
    """`RunResult.archiving` and the time of the newest record (ms, -1 if unknown) after a micro-batch.

    Args:
        changes: of the micro-batch.
        archiving, log_time: before it.
    """
    found = [(one.log, *one.summary["archiving"]) for one in changes if one.summary.get("archiving")]
    seen = found if archiving is None else [archiving, *found]
    times = [one.summary["newest_time"] for one in changes if one.summary]
    return min(seen, key=itemgetter(2, 0), default=None), max([-1 if log_time is None else log_time, *times])


def merge_findings(
    before: pa.Table,
    changes: Sequence[LogChanges],
    *,
    archiving: tuple[str, int, int] | None,
    newest: int,
    topics: Topics,
    run_id: str,
    severities: Mapping[str, str],
    of_letters: pa.Table | None = None,
) -> pa.Table | None:
    """The table `findings` after a micro-batch; None if it stays as it was.

    Args:
        before: the table before it.
        changes: of the micro-batch.
        archiving, newest: from `shown_times`.
        topics: the names of topics.
        run_id: for the column `run_id`.
        severities: as in FoldPlan.
        of_letters: all findings about dead letters; None if those stay as they were.
    """
    of_logs = [one.tables[FINDINGS] for one in changes if FINDINGS in one.tables]
    new = list[pa.Table]()
    if of_logs:
        # At once: few findings cost as much as many.
        new = [keep_proven(pa.concat_tables(of_logs, promote_options="permissive"), archiving, newest)]
    known = {*before["message"].to_pylist()} if any(one.problems for one in changes) else ()
    for one in changes:
        # A stream that was killed reads a file again.
        problems = [problem for problem in one.problems if problem not in known]
        new += [_unreadable(problems, severities)] if problems else []
    of_input = [one.of_input for one in changes if one.of_input is not None][-1:]
    if not new and of_letters is None and not of_input:
        return None
    rows = of_run(named_rows(pa.concat_tables([before.slice(0, 0), *new]), topics), run_id)
    read = pa.array([one.summary["partition"] for one in changes if one.summary], pa.int32())
    # As after an audit: a log that is read from its start again is judged again.
    anew = [one.summary["partition"] for one in changes if one.summary and one.summary["is_read_anew"]]
    number = before["state_partition"]
    settled = pc.and_(before["settled"], pc.invert(pc.is_in(number, pa.array(anew, pa.int32()))))
    stays = pc.or_(settled, pc.invert(pc.is_in(number, read)))
    kept = before.filter(stays)
    if of_letters is not None:
        kept = pa.concat_tables([kept.filter(~IS_OF_LETTERS), of_run(of_letters, run_id)])
    for found in of_input:
        kept = pa.concat_tables([kept.filter(~IS_OF_INPUT), of_run(found, run_id)])
    every = cap_findings(pa.concat_tables([kept, rows]).combine_chunks())
    return None if every.equals(before) else every


def input_findings(
    listing: Listing, states: Mapping[int, FoldCheckpoint], severities: Mapping[str, str]
) -> pa.Table:
    """The findings about state partitions that the input of a stream lacks.

    Args:
        listing: what the input has now.
        states: state partition -> what the stream has read of it.
        severities: as in FoldPlan.
    """
    modulus = gcd(*(key_modulus(state.keys.coordinator_hashes(), number) for number, state in states.items()))
    live = sum(int(state.chains.chains["exists"].sum()) for state in states.values())
    coverage = state_partition_coverage(listing.logs, listing.count, modulus, live)
    left = {*states} - {log.partition for log in listing.logs}
    missing = tuple(number for number in coverage.missing if number not in left) if listing.is_whole else ()
    return findings(Scope.INPUT, replace(coverage, missing=missing, left=(*sorted(left),)), severities)


def tails_of(notes: Sequence[str]) -> tuple[str, ...]:
    """Those of the notes of a run that are about copies that end too early."""
    return tuple(note for note in notes if note.startswith(TAIL_NOTE))


def noted_tails(notes: Sequence[str], changes: Sequence[LogChanges]) -> tuple[str, ...]:
    """The notes of a run after a micro-batch, which may show other ends of copies."""
    latest = [one.tails for one in changes if one.of_input is not None][-1:]
    if not latest:
        return tuple(notes)
    return (*(note for note in notes if not note.startswith(TAIL_NOTE)), *latest[0])


def noted_starts(notes: Sequence[str], starts: Mapping[str, int]) -> tuple[str, ...]:
    """The notes of a run with the one on logs whose beginning is not in the input.

    Args:
        notes: maybe with an earlier such note.
        starts: as for `start_notes`.
    """
    return (*(note for note in notes if not note.startswith(START_NOTE)), *start_notes(starts))


def of_run(found: pa.Table, run_id: str) -> pa.Table:
    """Findings with the id of a run."""
    rows = found.cast(table_schema(FINDINGS))
    place = rows.schema.get_field_index("run_id")
    return rows.set_column(place, "run_id", pa.repeat(run_id, len(rows)))


def named_rows(rows: pa.Table, topics: Topics) -> pa.Table:
    """Rows with the names and the end offsets of their topics."""
    if "topic_id" not in rows.column_names:
        return rows
    ids, partitions = rows["topic_id"].combine_chunks(), rows["partition"].combine_chunks()
    if pa.types.is_dictionary(ids.type):
        names = topics.name_of(ids.dictionary).dictionary_encode().take(ids.indices)
    else:
        names = topics.name_of(ids)
    columns = {"topic": names}
    if "topic_end_offset" in rows.column_names:
        columns["topic_end_offset"] = topics.end_of(ids.cast(pa.string()), partitions)
    for name, values in columns.items():
        if name in rows.column_names:
            rows = rows.set_column(rows.schema.get_field_index(name), name, values)
    return rows


def _unreadable(problems: Sequence[str], severities: Mapping[str, str]) -> pa.Table:
    """Findings about what cannot be read at all in the input."""
    severity = severities.get(_UNREADABLE, registered()[_UNREADABLE].severity)
    about = {
        "rule": _UNREADABLE,
        "severity": severity,
        "dialect": SHARE_GROUP_STATE,
        "settled": True,
        "evidence": [],
    }
    rows = [about | {"message": problem} for problem in problems if severity != OFF]
    return pa.Table.from_pylist(rows, table_schema(FINDINGS))


@dataclass(frozen=True, slots=True)
class KnownGroups:
    """Share groups, as far as they are known.

    Attributes:
        members: share group -> number of its members.
        newest_time: ms, timestamp of the newest record of any group; -1 for none.
    """

    members: Mapping[str, int] = field(default_factory=dict)
    newest_time: int = -1

    @property
    def empty(self) -> list[str]:
        """The groups that have no members."""
        return sorted(group for group, count in self.members.items() if not count)


def judged_history(
    rows: pa.Table,
    *,
    time_ms: int,
    run_id: str,
    limits: Limits,
    groups: KnownGroups,
    with_reasons: bool = True,
) -> pa.Table:
    """Rows of `share_partition_history` with lag and verdict.

    Args:
        rows: from `history_rows`, with the names and ends of topics.
        time_ms, run_id, limits, with_reasons: as for `add_verdicts`.
        groups: the share groups.
    """
    lag = compute_lags(rows["topic_end_offset"], rows["start_offset"], rows[COMPLETE])
    given = rows.drop_columns(COMPLETE).set_column(rows.schema.get_field_index("lag"), "lag", lag)
    judged = add_verdicts(
        given,
        time=time_ms,
        run_id=run_id,
        limits=limits,
        empty_groups=groups.empty,
        with_reasons=with_reasons,
    )
    return judged.cast(table_schema(HISTORY_TABLE))
