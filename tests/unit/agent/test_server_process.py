from __future__ import annotations

from pathlib import Path

import pytest

from monolith.agent.children import ChildPlan
from monolith.agent.model_configs import make_model_config, make_server_config
from monolith.agent.server_process import ServerProcess
from monolith.core.lifeline import Lifeline


def test_models_whose_file_could_not_be_written_are_set_by_the_next_call(tmp_path: Path) -> None:
    models = make_server_config([make_model_config("m:ps_0", "/models/ps_0")])
    path = tmp_path / "later" / "ps.models"
    with Lifeline() as lifeline:
        server = ServerProcess(ChildPlan(name="ps", command=["true"]), path, "127.0.0.1:1", lifeline)
        try:
            with pytest.raises(OSError, match=r"later/ps\.models"):
                server.set_models(models)
            assert server.list_saved_models() == []
            path.parent.mkdir()
            server.set_models(models)
            assert server.list_saved_models() == ["m:ps_0"]
            assert "m:ps_0" in path.read_text()
        finally:
            server.stop()
