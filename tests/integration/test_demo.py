"""The whole demonstration on few clicks: it learns, its processes follow, and nothing of it stays."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

from monolith.testing.eventually import eventually

PROGRAM = [sys.executable, "-c", "from monolith.cli.main import main; main()"]


def still_running(folder: Path) -> list[str]:
    """The commands that name a folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue  # ended meanwhile
        if str(folder) in line:
            found.append(line)
    return found


def test_the_demonstration_learns_serves_and_shows_scores_move_with_live_events(tmp_path: Path) -> None:
    done = subprocess.run(
        [*PROGRAM, "demo", "--folder", str(tmp_path), "--clicks", "30000", "--moves", "2", "--json"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert 0.55 < result["auc"] < result["best_auc"]
    assert 0.5 < result["calibration"] < 2
    assert result["ids"] > 1000
    assert result["checkpoint_bytes"] > 0
    assert (Path(result["checkpoint"]) / "manifest.json").is_file()
    assert len({move["item_id"] for move in result["moves"]}) == 2
    for move in result["moves"]:
        assert (move["after"] > move["before"]) == move["is_up"]
        assert abs(move["after"] - move["before"]) > abs(move["others"])
        assert 0 < move["seconds"] <= result["event_to_predict_worst_s"]
    assert result["event_to_predict_median_s"] <= result["event_to_predict_worst_s"]
    assert result["requests"] > 8
    assert still_running(tmp_path) == []


def test_ctrl_c_ends_the_demonstration_and_all_that_it_started(tmp_path: Path) -> None:
    command = [*PROGRAM, "demo", "--folder", str(tmp_path), "--clicks", "2000", "--moves", "1000", "--headless"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            seen = next((line for line in process.stderr if line.startswith("item ")), "")
            assert "score" in seen
            # A process that forks is there twice until its child has another command.
            eventually(lambda: len(still_running(tmp_path)) == 3, 20)
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=120)
        finally:
            process.kill()
    assert process.returncode == 130, errors
    assert "Traceback" not in errors
    assert still_running(tmp_path) == []
