"""What a command does with a warehouse, wherever its tasks run."""
