"""EntryDump files, in which the original keeps tables: read, written, and converted to and from tables."""

from __future__ import annotations

from monolith.compat.entry_dump.convert import (
    entry_dump_to_table,
    multi_entry_dump_to_tables,
    restore_multi_entry_dump,
    table_to_entry_dump,
    tables_to_multi_entry_dump,
)
from monolith.compat.entry_dump.dump import (
    Progress,
    count_entries,
    read_entry_dump,
    read_multi_entry_dump,
    write_entry_dump,
    write_multi_entry_dump,
)
from monolith.compat.entry_dump.writable_file import WritableFile

__all__ = [
    # entries
    "Progress",
    "count_entries",
    "read_entry_dump",
    "read_multi_entry_dump",
    "write_entry_dump",
    "write_multi_entry_dump",
    # tables
    "entry_dump_to_table",
    "multi_entry_dump_to_tables",
    "restore_multi_entry_dump",
    "table_to_entry_dump",
    "tables_to_multi_entry_dump",
    # files
    "WritableFile",
]
