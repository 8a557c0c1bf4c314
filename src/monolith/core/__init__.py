"""What every other package stands on: errors, clock, retry, feature ids, logging set-up, metric names.

The lowest layer. It knows no table, no network and no framework, and imports nothing of Monolith but itself.
"""
