"""Kafka share-group state, read from exported logs."""

from share_state.fold.log import FoldedLog, fold_log
from share_state.fold.topics import Topics
from share_state.notebook import reconstruct
from share_state.wire.log_folder import LogPartition, Window, find_logs

__version__ = "0.1.0"

__all__ = ["FoldedLog", "LogPartition", "Topics", "Window", "__version__", "find_logs", "fold_log", "reconstruct"]
