"""Sources of records: files, streams, tables. Each is one module, and passes the suite of ``Source``."""
