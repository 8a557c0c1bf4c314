from __future__ import annotations

from pathlib import Path

import pytest

from monolith.core.errors import ClusterError, ConfigError, ConnectionFailed
from monolith.discovery import FileDiscovery, ServiceInfo


def opened(folder: Path) -> FileDiscovery:
    discovery = FileDiscovery(folder)
    discovery.connect()
    return discovery


def test_files_of_others_are_read_and_strange_ones_are_not(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "ps").mkdir()
    for name, content in (("0", "h:1\n"), ("1", ""), ("2", "nowhere"), ("3.tmp-ab", "h:3"), ("x", "h:4")):
        (tmp_path / "ps" / name).write_text(content)
    (tmp_path / "ps" / "4").write_bytes(b"\xff:1")
    assert [(one.index, one.address) for one in opened(tmp_path).query("ps")] == [(0, "h:1")]
    assert "invalid address in discovery file" in caplog.text


def test_a_folder_that_cannot_be_made_is_a_failed_connection(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConnectionFailed, match=r"Connection failed: folder .*/file/job cannot be created"):
        FileDiscovery(tmp_path / "file" / "job").connect()


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    discovery = opened(tmp_path)
    (tmp_path / "ps" / "0").mkdir(parents=True)
    with pytest.raises(ClusterError, match=r"file .*/ps/0 cannot be written"):
        discovery.register(ServiceInfo(service_type="ps", index=0, host="h", port=1))


def test_a_service_needs_an_index(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="'ps-h:1' has no index; file discovery needs one"):
        opened(tmp_path).register(ServiceInfo(service_type="ps", host="h", port=1))
