"""Run a fleet of model servers through ZooKeeper: configuration, nodes, replicas, supervision, scheduling.

An agent runs beside the servers of one container. It starts them, registers them in ZooKeeper, copies their state
there, and tells its entry server where the other sub-models are served. ``agent`` imports no server.
"""
