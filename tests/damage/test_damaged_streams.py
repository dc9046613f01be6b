"""A stream concludes from a damaged folder of segments what a reconstruct does, whatever the damage."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from random import Random
from tempfile import mkdtemp
from typing import Any

import pyarrow.compute as pc
from hypothesis import Phase, assume, given, settings
from hypothesis import strategies as st

from share_state.cli.main import run
from share_state.delta.committed import CommittedTables
from share_state.fold.states import KEY
from tests.damage.damage import KINDS, NotApplicableError
from tests.damage.exports import DRAFT, HISTORIES, dialect_of, whole_export
from tests.profiles import by_profile

_OF_STATES = ("share_partition_state", "in_flight")
_ONE_COPY = [kind for kind in sorted(KINDS) if kind != "older_copy_beside"]


def _read(lake: Path) -> dict[str, list[str]]:
    """The tables, without what docs/stream.md leaves to the audit: SPLIT_KEY, and states of keys of other logs."""
    tables = CommittedTables(str(lake))
    read = {name: tables.read(name) for name in (*_OF_STATES, "cutoff", "findings")}
    read["findings"] = read["findings"].filter(pc.field("rule") != "SPLIT_KEY")
    elsewhere = {_key(row) for row in read["findings"].to_pylist() if row["rule"] == "WRONG_PARTITION"}
    return {
        name: sorted(
            str(row | {"run_id": ""})
            for row in rows.to_pylist()
            if name not in _OF_STATES or _key(row) not in elsewhere
        )
        for name, rows in read.items()
    }


def _key(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in KEY)


# An example takes half a second: to make a failing one smaller takes minutes.
@settings(max_examples=by_profile(3, 2000), phases=[Phase.explicit, Phase.generate])
@given(
    kind=st.sampled_from(_ONE_COPY),
    history=st.sampled_from([one for one in HISTORIES if dialect_of(one) != DRAFT]),
    seed=st.integers(0, 3),
    choice=st.integers(0, 2**32),
    has_checkpoints=st.booleans(),
)
def test_a_stream_has_the_tables_of_a_reconstruct(
    kind: str, history: str, seed: int, choice: int, has_checkpoints: bool
):
    whole = whole_export(history, seed)
    damaged, rng = whole.copied() if has_checkpoints else whole.without_checkpoints(), Random(choice)
    name = rng.choice([name for name, log in sorted(damaged.logs.items()) if any(log.segments.values())])
    try:
        KINDS[kind](damaged, name, rng)
    except NotApplicableError:
        assume(condition=False)
    folder = Path(mkdtemp(prefix="damaged-"))
    try:
        (source,) = damaged.write(folder / "in")
        codes = {
            run([*command, source, "--out", str(folder / command[0]), "--quiet"])
            for command in (["reconstruct"], ["stream", "--once"])
        }
        if codes != {2}:
            assert _read(folder / "stream") == _read(folder / "reconstruct")
    finally:
        shutil.rmtree(folder)
