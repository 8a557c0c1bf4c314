"""What is generated from ``proto/``: descriptors, and type stubs for the messages made of them.

`make proto` rebuilds everything here but this file. The classes themselves are made by whoever uses them, in a private
descriptor pool, so nothing here touches the process-wide one.
"""
