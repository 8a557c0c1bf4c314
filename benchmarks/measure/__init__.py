"""What every benchmark shares: how things are timed, and how a result becomes a line."""
