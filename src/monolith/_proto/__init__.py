"""Protobuf: descriptors and type stubs generated from ``proto/``, and ``messages``, which makes classes of them.

`make proto` rebuilds everything except this file and ``messages.py``. Classes live in private descriptor pools, never
in the process-wide pool.
"""
