"""Real servers, jobs and networks on this machine, for tests that start, kill, pause and cut them off."""
