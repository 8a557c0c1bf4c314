"""Roles: the work of one process of a job. A process is a parameter server, a worker, a rank or an evaluator.

Torch is imported by the roles that train.
"""
