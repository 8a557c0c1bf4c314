"""The benchmark of the agent service."""
