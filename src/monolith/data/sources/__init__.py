"""Sources of records: files, streams, tables. Each source passes the conformance suite of ``Source``."""
