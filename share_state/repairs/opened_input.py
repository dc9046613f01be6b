"""What a command or a Python call is about, once it is open: the tables of a warehouse or of logs, and the logs."""

from dataclasses import dataclass

from share_state.delta.committed import CommittedTables
from share_state.fold.limits import Limits
from share_state.pipeline.plan import FoldPlan
from share_state.repairs.commands import KafkaTools


@dataclass(frozen=True, slots=True)
class OpenedInput:
    """An input, as tables and as logs.

    Attributes:
        tables: of the warehouse, or of an audit of the logs.
        plan: the logs that the tables were made of; None if those of a warehouse cannot be read.
        lacks_logs: why there is no plan.
        limits: the limits of the logs; None for those of the warehouse's run.
        tools: the commands of the cluster.
        words: input and options as the caller typed them, for the commands to go on.
    """

    tables: CommittedTables
    plan: FoldPlan | None
    lacks_logs: str | None
    limits: Limits | None
    tools: KafkaTools
    words: tuple[str, ...]
