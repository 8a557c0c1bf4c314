"""The benchmark of the event log."""
