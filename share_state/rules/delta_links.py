"""Rules over the chains of control records of the KIP-932 draft: links between deltas, and checkpoint epochs."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pyarrow as pa

from share_state.fold.draft.control_chains import ControlChains, fold_control
from share_state.fold.draft.control_log import LINK, FoldedControlLog
from share_state.fold.state_chains import NO_OFFSET
from share_state.kafka.control_records import EPOCH_MODULUS, UNREADABLE_CONTROL_FAULTS, ControlKind
from share_state.rules.breaches import ERROR, WARNING, Breaches, Column, listed
from share_state.rules.registry import Scope, rule


def at_records(
    rows: np.ndarray, *pieces: Column, severity: np.ndarray | None = None, **evidence: Column
) -> Breaches:
    """One breach per control record, given as rows of CONTROL_RECORD or LINK; other arguments as in Breaches."""
    key = rows["group"].astype(np.int64)
    return Breaches(rows["offset"].copy(), pieces, key=key, evidence=evidence, severity=severity)


# Links. Only deltas after the latest checkpoint of their group are judged: the predecessors of older deltas
# may be deleted, and no state depends on them.

_SAME = 0
_STALE = 1
_FUTURE = 2


def _deltas(folded: FoldedControlLog, epoch: int) -> np.ndarray:
    """Readable deltas after their group's checkpoint whose epoch is _SAME, _STALE or _FUTURE."""
    rows = folded.records.rows
    chains = folded.all_chains.chains[rows["group"]]
    ahead = (rows["epoch"] - chains["epoch"]) % EPOCH_MODULUS
    of_epoch = (ahead == 0, ahead >= EPOCH_MODULUS // 2, (ahead > 0) & (ahead < EPOCH_MODULUS // 2))[epoch]
    readable = rows["fault"] & UNREADABLE_CONTROL_FAULTS == 0
    return rows[of_epoch & readable & chains["exists"] & (rows["kind"] == ControlKind.DELTA)]


def _bad_links(folded: FoldedControlLog) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Deltas that do not refer to their predecessor.

    Returns:
        (their rows, offset of each predecessor, LINK row that each refers to instead; its group is -1 if that
        is not a readable checkpoint or delta).
    """
    rows = _deltas(folded, _SAME)
    rows = rows[np.argsort(rows["group"], kind="stable")]
    previous = np.concatenate(([NO_OFFSET], rows["offset"]))[:-1]
    first = np.concatenate(([True], rows["group"][1:] != rows["group"][:-1]))[: len(rows)]
    previous[first] = folded.all_chains.chains["snapshot_offset"][rows["group"][first]]
    bad = rows["back_offset"] != previous
    rows, previous = rows[bad], previous[bad]
    links = folded.links[folded.links["fault"] & UNREADABLE_CONTROL_FAULTS == 0]
    place = np.minimum(np.searchsorted(links["offset"], rows["back_offset"]), max(len(links) - 1, 0))
    referenced = links[place] if len(links) else np.zeros(0, LINK)
    referenced["group"][referenced["offset"] != rows["back_offset"]] = -1
    return rows, previous, referenced


def _has_sibling(folded: FoldedControlLog, rows: np.ndarray) -> np.ndarray:
    """For each delta, whether an earlier delta of its chain refers to the same predecessor."""
    chain = _deltas(folded, _SAME)
    order = np.lexsort((chain["offset"], chain["back_offset"], chain["group"]))
    chain = chain[order]
    repeats = (chain["group"][1:] == chain["group"][:-1]) & (
        chain["back_offset"][1:] == chain["back_offset"][:-1]
    )
    return np.isin(rows["offset"], chain["offset"][1:][repeats])


def _links_of(folded: FoldedControlLog, kind: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The bad links of one kind: forward, group, epoch, fork or missing. Every bad link has exactly one kind."""
    rows, previous, referenced = _bad_links(folded)
    forward = rows["back_offset"] >= rows["offset"]
    is_known = ~forward & (referenced["group"] >= 0)
    group = is_known & (referenced["group"] != rows["group"])
    epoch = is_known & ~group & (referenced["epoch"] != rows["epoch"])
    fork = is_known & ~group & ~epoch & _has_sibling(folded, rows)
    selected = {
        "forward": forward,
        "group": group,
        "epoch": epoch,
        "fork": fork,
        "missing": ~(forward | group | epoch | fork),
    }[kind]
    return rows[selected], previous[selected], referenced[selected]


def _links(rows: np.ndarray, previous: np.ndarray, text: str, **evidence: np.ndarray | pa.Array) -> Breaches:
    back = rows["back_offset"].copy()
    after = f" as its predecessor, {text}; the record before it is at offset "
    return at_records(
        rows, "the delta names ", back, after, previous, back_offset=back, expected=previous, **evidence
    )


@rule("BROKEN_CHAIN", Scope.CONTROL_LOG, ERROR, "KIP-932 draft, ShareDelta BackOffset")
def broken_chain(folded: FoldedControlLog) -> Breaches:
    """Every delta refers to the previous control record of its group.

    Do: export the whole log; see STATE_SUSPECT.
    """
    rows, previous, referenced = _links_of(folded, "missing")
    is_known = referenced["group"] >= 0
    base = folded.all_chains.chains["snapshot_offset"][rows["group"]]
    reason = np.where(
        is_known & (rows["back_offset"] >= base), "passed_over", np.where(is_known, "before_base", "missing")
    )
    return _links(rows, previous, "which it does not follow", reason=pa.array(reason, pa.string()))


@rule("FORWARD_BACK_OFFSET", Scope.CONTROL_LOG, ERROR, "KIP-932 draft, ShareDelta BackOffset")
def forward_back_offset(folded: FoldedControlLog) -> Breaches:
    """A delta refers to an earlier offset.

    Do: fix the writer.
    """
    rows, previous, _ = _links_of(folded, "forward")
    return _links(rows, previous, "which is not an earlier offset")


@rule("CROSS_GROUP", Scope.CONTROL_LOG, ERROR, "KIP-932 draft, ShareDelta BackOffset")
def cross_group(folded: FoldedControlLog) -> Breaches:
    """A delta refers to a record of its own group.

    Do: fix the writer.
    """
    rows, previous, referenced = _links_of(folded, "group")
    return _links(
        rows,
        previous,
        "a record of another group",
        named_group=folded.groups.take(pa.array(referenced["group"])),
    )


@rule("CROSS_EPOCH", Scope.CONTROL_LOG, ERROR, "KIP-932 draft, ShareDelta BackOffset")
def cross_epoch(folded: FoldedControlLog) -> Breaches:
    """A delta refers to a record of its own checkpoint epoch.

    Do: fix the writer.
    """
    rows, previous, referenced = _links_of(folded, "epoch")
    return _links(rows, previous, "a record of another epoch", named_epoch=referenced["epoch"].copy())


@rule("FORK", Scope.CONTROL_LOG, ERROR, "KIP-932 draft, ShareDelta BackOffset")
def fork(folded: FoldedControlLog) -> Breaches:
    """No two deltas refer to the same record.

    Otherwise two leaders wrote, or one leader wrote twice. The fold stops before the second delta in mode
    strict, and follows the branch of the newest delta in mode best-effort.

    Do: look at the offsets that the message names, in which the two modes differ; see STATE_SUSPECT.
    """
    rows, previous, _ = _links_of(folded, "fork")
    differing = pa.nulls(0, pa.string())
    if len(rows):
        folds = [fold_control(folded.records, len(folded.groups), strict=strict) for strict in (True, False)]
        forked, place = np.unique(rows["group"], return_inverse=True)
        texts = [_differing(folds, group) for group in forked.tolist()]
        differing = pa.array(texts, pa.string()).take(pa.array(place))
    breaches = _links(rows, previous, "as an earlier delta does", differing=differing)
    return replace(
        breaches, message=(*breaches.message, "; the modes strict and best-effort differ in ", differing)
    )


def _differing(folds: Sequence[ControlChains], group: int) -> str:
    """The offsets whose states differ between two folds of a group."""
    points, values = set[int](), []
    for fold in folds:
        chain, batches = fold.chains[group], fold.batches[fold.ends[group] : fold.ends[group + 1]]
        start, end = int(chain["start_offset"]), int(chain["end_offset"])
        # (first offset, offset after the last, value); later rows win.
        ranges_of_fold = [(0, start, "finished"), (start, end, "available")]
        ranges_of_fold += [
            (int(one["first"]), int(one["last"]) + 1, (int(one["state"]), int(one["count"])))
            for one in batches
        ]
        points |= {point for first, last, _ in ranges_of_fold for point in (first, last)}
        values.append(ranges_of_fold)
    ordered, ranges = sorted(points), list[list[int]]()
    for first, after in pairwise(ordered):
        one, other = (
            [value for begin, end, value in ranges_of_fold if begin <= first < end][-1:]
            for ranges_of_fold in values
        )
        if one != other and ranges and ranges[-1][1] == first - 1:
            ranges[-1][1] = after - 1
        elif one != other:
            ranges.append([first, after - 1])
    return (
        f"offsets {listed('-'.join(map(str, dict.fromkeys(one))) for one in ranges)}"
        if ranges
        else "no offset"
    )


# Epochs.


@rule("STALE_EPOCH", Scope.CONTROL_LOG, WARNING, "KIP-932 draft, checkpoint epoch")
def stale_epoch(folded: FoldedControlLog) -> Breaches:
    """No delta of an older epoch follows a checkpoint.

    A replaced leader wrote it; it is not folded.

    Do: nothing.
    """
    return _epochs(folded, _deltas(folded, _STALE), " and was left out")


@rule("FUTURE_EPOCH", Scope.CONTROL_LOG, ERROR, "KIP-932 draft, checkpoint epoch")
def future_epoch(folded: FoldedControlLog) -> Breaches:
    """Every delta belongs to a checkpoint that is in the log.

    Do: export the whole log.
    """
    return _epochs(folded, _deltas(folded, _FUTURE), ", whose checkpoint is missing")


def _epochs(folded: FoldedControlLog, rows: np.ndarray, text: str) -> Breaches:
    epoch, latest = rows["epoch"].copy(), folded.all_chains.chains["epoch"][rows["group"]]
    pieces = ("the delta has epoch ", epoch, f"{text}; the latest checkpoint has epoch ", latest)
    return at_records(rows, *pieces, epoch=epoch, checkpoint_epoch=latest)


def _epoch_steps(folded: FoldedControlLog) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Checkpoints that follow another checkpoint of their group: rows, epoch before, difference modulo 65536."""
    links = folded.links
    rows = links[
        (links["kind"] == ControlKind.CHECKPOINT) & (links["fault"] & UNREADABLE_CONTROL_FAULTS == 0)
    ]
    rows = rows[np.argsort(rows["group"], kind="stable")]
    follows = rows["group"][1:] == rows["group"][:-1]
    later, earlier = rows[1:][follows], rows["epoch"][:-1][follows]
    return later, earlier, (later["epoch"] - earlier) % EPOCH_MODULUS


@rule("EPOCH_GAP", Scope.CONTROL_LOG, WARNING, "KIP-932 draft, checkpoint epoch")
def epoch_gap(folded: FoldedControlLog) -> Breaches:
    """The checkpoint epoch of a group increases by exactly one, from 65535 to 0.

    Do: export the whole log.
    """
    rows, earlier, step = _epoch_steps(folded)
    gap = (step != 0) & (step != 1)
    return _steps(rows[gap], earlier[gap], missing=step[gap] - 1)


@rule("EPOCH_REPEAT", Scope.CONTROL_LOG, WARNING, "KIP-932 draft, checkpoint epoch")
def epoch_repeat(folded: FoldedControlLog) -> Breaches:
    """No two consecutive checkpoints of a group have the same epoch.

    Do: compare them.
    """
    rows, earlier, step = _epoch_steps(folded)
    return _steps(rows[step == 0], earlier[step == 0])


def _steps(rows: np.ndarray, earlier: np.ndarray, **evidence: np.ndarray) -> Breaches:
    epoch = rows["epoch"].copy()
    pieces = ("the checkpoint has epoch ", epoch, ", the one before it ", earlier)
    return at_records(rows, *pieces, epoch=epoch, previous_epoch=earlier, **evidence)
