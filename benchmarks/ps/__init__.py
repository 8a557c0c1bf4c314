"""Parameter servers: rows per second through a process, training on two of them, starting and recovering."""
