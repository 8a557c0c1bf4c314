"""The embedded event log: topics of append-only segment files that several processes append to and read.

``Topic`` in ``topic`` creates and opens a topic, ``LogWriter`` in ``writer`` appends to it, ``EventLogSource`` in
``source`` reads it, ``groups`` saves the positions of consumer groups. The files are described in
``docs/reference/event-log-format.md``; the native code is in ``cpp/eventlog``.
"""
