"""`share-state reconstruct` over exports of equal bytes that differ in one thing: keys, log partitions, segments."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from bench.end_to_end import EndToEnd, reconstructed, typical_run
from bench.exports import Export, Shape, made, records_in
from bench.stretched import LARGEST_SEGMENT, stretched

_ROUNDS = 16
_BYTES_A_KEY = 1_250
_EVEN = 50
_SEGMENTS = 4_000
_USUAL_KEYS = 20_000


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two exports of a pair, by what sets it apart."""

    name: str
    export: Export


@dataclass(frozen=True, slots=True)
class Measured:
    """The command over one side.

    Attributes:
        side: which.
        run: the pass of median CPU time.
        peak_bytes: of the largest process that folds, of all passes.
    """

    side: Side
    run: EndToEnd
    peak_bytes: int


@dataclass(frozen=True, slots=True)
class Pair:
    """Both sides of a pair, measured."""

    sides: tuple[Measured, Measured]

    @property
    def apart(self) -> float:
        """CPU seconds a byte of the dearer side over those of the cheaper one."""
        first, second = (one.run.usage.cpu_s / one.side.export.bytes for one in self.sides)
        return max(first, second) / min(first, second)


def pairs(megabytes: int) -> Iterator[tuple[Side, Side]]:
    """Exports of so many MB (10^6 bytes), made one pair after the other.

    Source: Kafka TopicConfig.SEGMENT_BYTES_CONFIG, an int32, so no segment is larger than 2 GB.
    """
    size = megabytes * 1_000_000
    one, many = _base(size, keys=1), many_keys(megabytes)
    yield Side("1 key", stretched(one, size, new_keys=False)), Side(f"{many.shape.keys:,} keys", many)
    hot = _base(size, keys=_USUAL_KEYS)
    yield (
        Side("one hot log partition", stretched(hot, size, new_keys=False)),
        Side(
            f"{_EVEN} even log partitions",
            stretched(_base(size, keys=_USUAL_KEYS, partitions=_EVEN), size, new_keys=False),
        ),
    )
    big = stretched(hot, size, new_keys=False, segment_bytes=min(size, LARGEST_SEGMENT))
    small = stretched(hot, size, new_keys=False, segment_bytes=size // _SEGMENTS)
    yield Side(f"segments: {big.segments}", big), Side(f"segments: {small.segments:,}", small)


def many_keys(megabytes: int) -> Export:
    """An export of so many MB in one log partition, of as many share-partitions as 1,250 bytes each allow."""
    size = megabytes * 1_000_000
    return stretched(_base(size, keys=size // _BYTES_A_KEY // _ROUNDS), size, new_keys=True)


def measured(sides: tuple[Side, Side], runs: int, place: Sequence[str]) -> Pair:
    """Run the command over both sides by turns; `place` is what else it is given, to say where its tasks run."""
    passes = [[reconstructed(side.export, *place) for side in sides] for _ in range(runs)]
    of_first, of_second = zip(*passes, strict=True)
    return Pair((_typical(sides[0], of_first), _typical(sides[1], of_second)))


def _typical(side: Side, runs: tuple[EndToEnd, ...]) -> Measured:
    return Measured(side, typical_run(runs), max(run.peak_bytes for run in runs))


def _base(size: int, *, keys: int, partitions: int = 1) -> Export:
    """What is repeated `_ROUNDS` times."""
    return made(Shape(records=records_in(size // _ROUNDS), keys=max(1, keys), partitions=partitions))
