"""The foundation of all packages: errors, clock, retry, feature ids, logging set-up, metric names.

The lowest layer: no tables, no network, no framework. It imports no other package of Monolith.
"""
