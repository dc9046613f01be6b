"""Under what conditions events are played."""

from dataclasses import dataclass, field
from typing import Literal

from share_state.partition.group_configs import BrokerConfigs, DraftConfigs
from share_state.partition.releases import RELEASES, Release
from share_state.partition.settings import PartitionSettings

Dialect = Literal["share_group_state", "control_records", "both"]


@dataclass(frozen=True, slots=True)
class Rules:
    """The conditions of one simulation.

    Args:
        release: what the brokers can do.
        configs: of the brokers, which bound what groups may set.
        settings: what every group begins with; what `configs` say, if not given.
        dialect: what is persisted; with both, what is loaded comes from the share coordinator.
        checkpoint_every: how many deltas make a checkpoint due in the draft's dialect, None for never.
        traces: outcomes carry what is in flight.
    """

    release: Release = RELEASES["4.3"]
    configs: BrokerConfigs | DraftConfigs = field(default_factory=BrokerConfigs)
    settings: PartitionSettings | None = None
    dialect: Dialect = "share_group_state"
    checkpoint_every: int | None = 10
    traces: bool = False
