"""The commands: a file each, named as the command is; `share_state.cli` loads the one that was typed."""
