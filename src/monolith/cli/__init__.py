"""The ``monolith`` command: one module per subcommand, which parses arguments and prints results.

The work is done by the other packages. A subcommand imports them when it runs.
"""
