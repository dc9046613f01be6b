"""The draft's recovery as a person would do it by hand: one record after the other, one offset after the other."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from tests.kafka.batches import Range

TERMINAL = (2, 4)


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint to be written."""

    group: str
    epoch: int
    start: int
    end: int
    states: tuple[Range, ...] = ()


@dataclass(frozen=True)
class Delta:
    """A delta to be written."""

    group: str
    epoch: int
    back: int
    states: tuple[Range, ...] = ()


@dataclass
class Modelled:
    """The state of one group: a dictionary of offsets."""

    start: int
    end: int
    epoch: int
    sco: int
    last: int
    value: dict[int, tuple[int, int]] = field(default_factory=dict)
    deltas: int = 0
    is_broken: bool = False
    is_doubtful: bool = False
    below_start: int = 0
    uncovered: set[int] = field(default_factory=set)

    def take(self, states: tuple[Range, ...], *, fill: bool) -> None:
        """Fold the tuples of one record in."""
        covered = [tuple_ for tuple_ in states if tuple_[0] <= tuple_[1]]
        self.is_doubtful |= len(covered) < len(states) or any(tuple_[2] not in (0, 2, 4) for tuple_ in covered)
        written = {offset for first, last, _, _ in covered for offset in range(first, last + 1)}
        end = max([self.end, *(last + 1 for _, last, _, _ in covered)])
        if fill:
            for offset in range(self.end, end):
                self.value[offset] = (0, 0)
                if offset not in written:
                    self.uncovered.add(offset)
        for first, last, state, count in covered:
            for offset in range(first, last + 1):
                if offset < self.start:
                    self.below_start += 1
                else:
                    self.value[offset] = (0, max(0, count - 1)) if state == 1 else (state, count)
        self.end = end
        while self.value.get(self.start, (0, 0))[0] in TERMINAL:
            del self.value[self.start]
            self.start += 1


def recover(log: Mapping[int, Checkpoint | Delta], *, strict: bool) -> dict[str, Modelled]:
    """The state of every group that has a checkpoint."""
    groups: dict[str, dict[int, Checkpoint | Delta]] = {}
    for offset, record in sorted(log.items()):
        groups.setdefault(record.group, {})[offset] = record
    found: dict[str, Modelled] = {}
    for group, own in groups.items():
        bases = [offset for offset, record in own.items() if isinstance(record, Checkpoint)]
        if bases:
            found[group] = _recover_group(own, max(bases), strict)
    return found


def _recover_group(own: Mapping[int, Checkpoint | Delta], sco: int, strict: bool) -> Modelled:
    base = own[sco]
    assert isinstance(base, Checkpoint)
    state = Modelled(base.start, base.end, base.epoch, sco, sco)
    state.take(base.states, fill=False)
    deltas = {
        offset: record
        for offset, record in own.items()
        if offset > sco and isinstance(record, Delta) and (record.epoch - base.epoch) % 65536 < 32768
    }
    offsets = [sco, *deltas]
    follows = [
        record.epoch == base.epoch and record.back == previous
        for previous, record in zip(offsets, deltas.values(), strict=False)
    ]
    state.is_broken = not all(follows)
    intact = follows.index(False) if state.is_broken else len(follows)
    for offset in offsets[1 : intact + 1] if strict else _walked_back(offsets, deltas):
        state.take(deltas[offset].states, fill=True)
        state.last = offset
        state.deltas += 1
    return state


def _walked_back(offsets: list[int], deltas: Mapping[int, Delta]) -> list[int]:
    """The deltas on the way back from the newest; where one names no record, the way goes on from the one before it."""
    path, place = [], len(offsets) - 1
    while place > 0:
        path.append(offsets[place])
        back = deltas[offsets[place]].back
        place = offsets.index(back) if back in offsets[:place] else place - 1
    return path[::-1]
