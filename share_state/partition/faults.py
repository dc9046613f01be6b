"""The table of faults: each breaks a finished log in one place, and says which finding that must cause, and where."""

import json
from dataclasses import dataclass
from typing import NamedTuple

from share_state.partition.batch_faults import BATCH_FAULTS, BatchFault
from share_state.partition.control_faults import CONTROL_FAULTS, ControlFault
from share_state.partition.state_faults import STATE_FAULTS, StateFault

ALL = "all"
BASE_LOST = "base-lost"


def name_of(fault: StateFault | ControlFault | BatchFault) -> str:
    """What a fault is asked for by: the finding's code in small letters, or the name it has of its own."""
    return fault.name if isinstance(fault, BatchFault) else fault.finding.lower().replace("_", "-")


STATE = {name_of(fault): fault for fault in STATE_FAULTS}
CONTROL = {name_of(fault): fault for fault in CONTROL_FAULTS}
BATCH = {name_of(fault): fault for fault in BATCH_FAULTS}


class Kind(NamedTuple):
    """A fault that can be asked for.

    Attributes:
        finding: code of the finding that it causes.
        what: in words.
        dialects: whose logs it can befall.
    """

    finding: str
    what: str
    dialects: tuple[str, ...]


_OF_STATE, _OF_CONTROL = ("share_group_state",), ("control_records",)
_OF_BOTH = _OF_STATE + _OF_CONTROL

FAULTS = {
    **{name: Kind(one.finding, one.what, _OF_BOTH if one.is_for_any_topic else _OF_STATE)
       for name, one in BATCH.items()},
    **{name: Kind(one.finding, one.what, _OF_STATE) for name, one in STATE.items()},
    **{name: Kind(one.finding, one.what, _OF_CONTROL) for name, one in CONTROL.items()},
    BASE_LOST: Kind("BASE_LOST", "a log start beyond what the state of a share-partition rests on", _OF_BOTH),
}  # fmt: skip
"""Every fault by name."""


@dataclass(frozen=True, slots=True)
class Planted:
    """A fault that was planted.

    Attributes:
        fault: its name.
        finding: code of the finding it must cause.
        log: topic and partition of the log it is in.
        offset: of the record or batch at fault.
        group: of the share-partition that the finding is about, None where it is about the log.
        topic_id: of the share-partition's topic, None in topics that are their own log.
        partition: of the share-partition.
    """

    fault: str
    finding: str
    log: tuple[str, int]
    offset: int
    group: str | None = None
    topic_id: str | None = None
    partition: int | None = None

    def to_json(self) -> str:
        """One JSON line, without the newline."""
        row = {"fault": self.fault, "finding": self.finding, "log": f"{self.log[0]}-{self.log[1]}"}
        row |= {"offset": self.offset, "group": self.group, "topicId": self.topic_id, "partition": self.partition}
        return json.dumps({name: value for name, value in row.items() if value is not None}, ensure_ascii=False)
