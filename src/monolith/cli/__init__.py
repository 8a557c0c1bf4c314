"""The ``monolith`` command: one file per subcommand, each of them argument parsing and nothing else.

What a command does lives in the package it belongs to and is imported when the command runs.
"""
