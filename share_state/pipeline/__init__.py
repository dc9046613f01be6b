"""One path from an input to results: `inputs` finds the logs, `plan` says how to fold them, `executor` runs `task`."""
