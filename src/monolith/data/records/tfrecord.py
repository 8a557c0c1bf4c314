"""TFRecord files as TensorFlow writes and reads them: checksummed records, plain or as one gzip or zlib stream.

The framing is native; this module has TensorFlow's names for it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from monolith.core.errors import ConfigError
from monolith.data.records.codecs import Compression, codec_of_name
from monolith.data.records.framing import Framing
from monolith.data.records.reader import RecordReader
from monolith.data.records.writer import RecordWriter

__all__ = ["TfRecordWriter", "read_tfrecords"]

# TensorFlow's spelling of its compression types.
_COMPRESSIONS: dict[str, Compression] = {"": "none", "NONE": "none", "GZIP": "gzip", "ZLIB": "zlib", "AUTO": "auto"}


def _codec(compression: str) -> Compression:
    codec = _COMPRESSIONS.get(compression.upper())
    if codec is None:
        raise ConfigError(f"compression is {compression!r}, expected 'GZIP', 'ZLIB', '' or 'auto'")
    return codec


def read_tfrecords(path: str | os.PathLike[str], compression: str = "auto") -> Iterator[bytes]:
    """Yield the records of a TFRecord file.

    Args:
        path: A local path or a URL.
        compression: "GZIP", "ZLIB" or "" as TensorFlow has them; "auto" looks at the file.

    Raises:
        RecordCorrupt: A checksum does not match, or the file ends inside a record.
        ConfigError: TensorFlow has no such compression.
    """
    with RecordReader(path, framing=Framing.tfrecord(), compression=_codec(compression)) as reader:
        yield from reader


class TfRecordWriter(RecordWriter):
    """Writes a TFRecord file that TensorFlow can read, given the same compression.

    Args:
        path: A local path or a URL.
        compression: "GZIP", "ZLIB" or ""; "auto" takes gzip for ``.gz``, zlib for ``.zz``, else none.

    >>> import tempfile
    >>> path = os.path.join(tempfile.mkdtemp(), "examples.tfrecord")
    >>> with TfRecordWriter(path, "GZIP") as writer:
    ...     writer.write(b"one")
    >>> list(read_tfrecords(path))
    [b'one']
    """

    def __init__(self, path: str | os.PathLike[str], compression: str = "") -> None:
        codec = _codec(compression)
        if codec == "auto":
            named = codec_of_name(os.fspath(path))
            if named not in ("none", "gzip", "zlib"):
                raise ConfigError(f"{os.fspath(path)} would be {named}, which TensorFlow cannot read; use .gz or .zz")
            codec = named
        super().__init__(path, framing=Framing.tfrecord(), compression=codec)
