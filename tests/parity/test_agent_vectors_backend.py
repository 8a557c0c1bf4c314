"""Vectors of the original for layouts, bindings, sync targets and the controller, against the twin and a "
"real server."""

from __future__ import annotations

import json
import logging
import queue
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from monolith.agent.bindings import Bindings, LayoutEntry
from monolith.agent.controller import Controller
from monolith.agent.layouts import Layouts
from monolith.agent.node_paths import NodePaths
from monolith.agent.records import Container, ContainerServiceInfo, SavedModel, SavedModelDeployConfig
from monolith.agent.sync_targets import ReplicaTargets, ServiceMapTargets
from monolith.artifacts.checkpoint_manifest import MANIFEST
from monolith.cli import main as program
from monolith.core.clock import Deadline, SystemClock
from monolith.core.durable_files import seal
from monolith.core.errors import ConfigError, ManifestInvalid, RecordCorrupt
from monolith.discovery.zookeeper_nodes import delete_tree, put
from monolith.discovery.zookeeper_session import ZooKeeperSession
from monolith.testing.processes.zookeeper_server import ZooKeeperServer, why_no_zookeeper
from monolith.testing.suites.zookeeper_ensembles import Ensemble, MemoryEnsemble, ServerEnsemble

PATIENCE_S = 60.0
MODEL = "test_ffm_model"
CONTAINER = Container("default", "asdf")
INFO = ContainerServiceInfo(
    grpc="localhost:8888", http="localhost:8889", archon="localhost:8890", agent="localhost:8891", idc="IDC"
)


def wait_until(is_true: Callable[[], object], patience_s: float = PATIENCE_S) -> None:
    clock = SystemClock()
    deadline = Deadline(clock, patience_s)
    while not is_true():
        assert not deadline.is_past, "the condition never became true"
        clock.sleep_s(0.01)


def saved(*sub_graphs: str) -> list[SavedModel]:
    return [SavedModel(MODEL, name) for name in sub_graphs]


def deploy(sub_graph: str, policy: str = "latest") -> SavedModelDeployConfig:
    return SavedModelDeployConfig(f"/models/{sub_graph}", policy)


@pytest.fixture(scope="module")
def server() -> Iterator[ZooKeeperServer]:
    if (reason := why_no_zookeeper()) is not None:
        pytest.skip(reason)
    pytest.importorskip("kazoo", reason="kazoo is not installed: pip install 'monolith[zookeeper]'")
    with ZooKeeperServer(tick_ms=500) as server:
        yield server


@pytest.fixture(params=["memory", "server"])
def ensemble(request: pytest.FixtureRequest) -> Iterator[Ensemble]:
    if request.param == "memory":
        with MemoryEnsemble() as memory:
            yield memory
    else:
        address = request.getfixturevalue("server").address
        with ServerEnsemble(address) as real:
            yield real


class Fleet:
    """One container of a bzid, its layout, and a second session that looks from outside."""

    def __init__(self, ensemble: Ensemble) -> None:
        self.bzid = f"gip-{uuid.uuid4().hex}"
        self.paths = NodePaths(self.bzid)
        self.session = ensemble.open()
        self.outside = ensemble.open()
        self.layouts = Layouts(self.outside, self.bzid)
        self.layout_path = f"/{self.bzid}/layouts/test_layout/mixed"
        self.calls: queue.Queue[list[LayoutEntry]] = queue.Queue()
        self.last: list[LayoutEntry] | None = None
        self.bindings = Bindings(self.session, self.bzid, check_s=3600)
        self.bindings.report_service_info(CONTAINER, INFO)
        self.bindings.register_layout_callback(self.layout_path, self._note)

    def _note(self, entries: list[LayoutEntry]) -> None:
        self.last = entries
        self.calls.put(entries)

    def declare_and_add(self, *sub_graphs: str) -> None:
        for saved_model in saved(*sub_graphs):
            self.layouts.declare(saved_model, deploy(saved_model.sub_graph))
            self.layouts.add_to_layout(self.layout_path, saved_model)

    def has_list(self, *sub_graphs: str) -> bool:
        return self.last == [(each, deploy(each.sub_graph)) for each in saved(*sub_graphs)]

    def binding(self, sub_graph: str, container: Container = CONTAINER) -> str:
        return self.paths.binding(SavedModel(MODEL, sub_graph), container)


@pytest.fixture
def fleet(ensemble: Ensemble) -> Iterator[Fleet]:
    fleet = Fleet(ensemble)
    yield fleet
    fleet.bindings.close()


class TestBackend:
    # T19
    def test_t19_service_info_is_read_back(self, fleet: Fleet) -> None:
        assert fleet.bindings.get_service_info(CONTAINER) == INFO
        assert fleet.bindings.get_service_info(Container("default", "other")) is None

    # T20, T21
    def test_t20_t21_the_layout_calls_back(self, fleet: Fleet) -> None:
        assert fleet.calls.get(timeout=PATIENCE_S) == []
        fleet.declare_and_add("entry", "ps_0", "ps_1", "ps_2")
        wait_until(lambda: fleet.has_list("entry", "ps_0", "ps_1", "ps_2"))
        fleet.layouts.remove_from_layout(fleet.layout_path, SavedModel(MODEL, "entry"))
        wait_until(lambda: fleet.has_list("ps_0", "ps_1", "ps_2"))

    # T22
    def test_t22_available_models_are_bound(self, fleet: Fleet) -> None:
        fleet.bindings.sync_available_saved_models(CONTAINER, saved("entry", "ps_0", "ps_1"))
        for name in ("entry", "ps_0", "ps_1"):
            stat = fleet.outside.exists(fleet.binding(name))
            assert stat is not None
            assert stat.ephemeralOwner == fleet.session.session_id
        assert fleet.bindings.available == frozenset(saved("entry", "ps_0", "ps_1"))
        fleet.bindings.sync_available_saved_models(CONTAINER, saved("ps_1"))
        assert fleet.outside.children(fleet.paths.model_bindings(MODEL)) == [f"ps_1:{CONTAINER}"]
        fleet.bindings.withdraw()
        assert fleet.outside.children(fleet.paths.model_bindings(MODEL)) == []
        assert fleet.bindings.get_service_info(CONTAINER) is None

    # T23
    def test_t23_the_service_map_has_the_bound_sub_graphs(self, fleet: Fleet) -> None:
        fleet.declare_and_add("entry", "ps_0")
        fleet.bindings.sync_available_saved_models(CONTAINER, saved("entry", "ps_0"))
        wait_until(lambda: fleet.bindings.get_service_map() == {MODEL: {"ps_0": [INFO], "entry": [INFO]}})
        assert fleet.bindings.get_addresses(SavedModel(MODEL, "ps_0")) == ["localhost:8888"]
        assert fleet.bindings.get_addresses(SavedModel(MODEL, "ps_0"), use_archon=True) == ["localhost:8890"]

    # T24, D36
    def test_t24_d36_sync_targets(self, fleet: Fleet) -> None:
        targets = ServiceMapTargets(fleet.outside, fleet.bzid)
        try:
            with pytest.raises(ConfigError, match="subscribe_model first"):
                targets.get_sync_targets("ps_1")
            targets.subscribe_model(MODEL)
            targets.subscribe_model(MODEL)
            fleet.bindings.sync_available_saved_models(CONTAINER, saved("ps_0", "ps_1", "ps_2"))
            expected = (f"{MODEL}:ps_1", ["localhost:8888"])
            wait_until(lambda: targets.get_sync_targets("ps_1") == expected)
            assert targets.get_sync_targets("ps_9") == (f"{MODEL}:ps_9", [])
            with pytest.raises(ConfigError, match="'other', expected 'test_ffm_model'"):
                targets.subscribe_model("other")
        finally:
            targets.close()

    # D37
    def test_d37_a_new_session_makes_the_nodes_again_within_a_second(self, fleet: Fleet, ensemble: Ensemble) -> None:
        fleet.bindings.sync_available_saved_models(CONTAINER, saved("entry", "ps_0"))
        old = fleet.session.session_id
        ensemble.expire(fleet.session)
        wait_until(lambda: not fleet.session.is_away and fleet.session.session_id not in (0, old))
        paths = [fleet.paths.container_service(CONTAINER), fleet.binding("entry"), fleet.binding("ps_0")]

        def are_back() -> bool:
            stats = fleet.outside.exists_all(paths)
            return all(stat is not None and stat.ephemeralOwner == fleet.session.session_id for stat in stats)

        wait_until(are_back, 1.0)
        created = [stat.czxid for stat in fleet.outside.exists_all(paths) if stat is not None]
        assert created == sorted(created)
        assert fleet.bindings.available == frozenset(saved("entry", "ps_0"))

    # D38
    def test_d38_a_container_joins_when_its_info_appears(self, fleet: Fleet, caplog: pytest.LogCaptureFixture) -> None:
        fleet.declare_and_add("ps_0")
        late = Container("default", "fd00::7")
        fleet.outside.create(fleet.binding("ps_0", late), ephemeral=True)
        wait_until(lambda: f"no service info of {late}" in caplog.text)
        assert fleet.bindings.get_service_map() == {}
        put(fleet.outside, fleet.paths.container_service(late), b"{broken")
        wait_until(lambda: "not JSON" in caplog.text)
        put(fleet.outside, fleet.paths.container_service(late), INFO.to_bytes())
        wait_until(lambda: fleet.bindings.get_service_map() == {MODEL: {"ps_0": [INFO]}})
        fleet.outside.delete(fleet.paths.container_service(late))
        wait_until(lambda: fleet.bindings.get_service_map() == {})

    # D39, D40
    def test_d39_d40_deploy_configs_are_followed(self, fleet: Fleet, caplog: pytest.LogCaptureFixture) -> None:
        fleet.declare_and_add("ps_0")
        fleet.layouts.add_to_layout(fleet.layout_path, SavedModel(MODEL, "ps_1"))
        wait_until(lambda: fleet.has_list("ps_0") and "missing deploy config for saved model" in caplog.text)
        fleet.layouts.declare(SavedModel(MODEL, "ps_1"), deploy("ps_1"))
        wait_until(lambda: fleet.has_list("ps_0", "ps_1"))
        changed = SavedModelDeployConfig("/models/elsewhere", "latest_once")
        fleet.layouts.declare(SavedModel(MODEL, "ps_1"), changed)
        wait_until(lambda: fleet.last is not None and fleet.last[-1] == (SavedModel(MODEL, "ps_1"), changed))
        assert caplog.text.count("missing deploy config") == 1

    # D41
    def test_d41_sub_graphs_are_ordered_by_number(self, fleet: Fleet) -> None:
        fleet.declare_and_add("ps_10", "ps_2", "entry")
        wait_until(lambda: fleet.has_list("entry", "ps_2", "ps_10"))

    # D42
    def test_d42_a_model_that_returns_is_followed_again(self, fleet: Fleet) -> None:
        fleet.declare_and_add("ps_0")
        fleet.bindings.sync_available_saved_models(CONTAINER, saved("ps_0"))
        wait_until(lambda: fleet.bindings.get_service_map() != {})
        fleet.layouts.remove_from_layout(fleet.layout_path, SavedModel(MODEL, "ps_0"))
        wait_until(lambda: fleet.bindings.get_service_map() == {})
        fleet.layouts.add_to_layout(fleet.layout_path, SavedModel(MODEL, "ps_0"))
        wait_until(lambda: fleet.bindings.get_service_map() == {MODEL: {"ps_0": [INFO]}})
        fleet.bindings.sync_available_saved_models(CONTAINER, [])
        wait_until(lambda: fleet.bindings.get_service_map() == {})

    # D43
    def test_d43_bzid_info(self, fleet: Fleet) -> None:
        fleet.declare_and_add("entry", "ps_0", "ps_1", "ps_2")
        fleet.bindings.sync_available_saved_models(CONTAINER, saved("entry", "ps_0", "ps_1"))
        info = fleet.layouts.bzid_info()
        model = info["model_info"][MODEL]
        assert (model["sub_graphs_total"], model["sub_graphs_available"]) == (4, 3)
        assert model["ps_0"]["bindings"] == ["default:asdf"]
        assert json.loads(model["ps_2"]["deploy_config"])["model_base_path"] == "/models/ps_2"
        container = info["container_info"]["default"]["asdf"]
        assert container["saved_models"] == [f"{MODEL}:{name}" for name in ("entry", "ps_0", "ps_1")]
        assert json.loads(container["service_info"])["grpc"] == "localhost:8888"
        assert info["layout_info"] == {"test_layout": ["mixed"]}

    # D33
    def test_bad_nodes_are_logged_once_and_stay(self, fleet: Fleet, caplog: pytest.LogCaptureFixture) -> None:
        fleet.declare_and_add("ps_0")
        bad = [f"{fleet.layout_path}/nocolon", fleet.paths.saved_model(SavedModel(MODEL, "ps_1"))]
        fleet.outside.create(bad[0])
        fleet.outside.create(bad[1], b'{"model_base_path": 7}')
        fleet.layouts.add_to_layout(fleet.layout_path, SavedModel(MODEL, "ps_1"))
        with caplog.at_level(logging.WARNING):
            wait_until(lambda: all(path in caplog.text for path in bad))
            wait_until(lambda: fleet.has_list("ps_0"))
        fleet.declare_and_add("ps_2")
        wait_until(lambda: fleet.has_list("ps_0", "ps_2"))
        assert [caplog.text.count(f"path={path} ") for path in bad] == [1, 1]
        assert all(fleet.outside.exists(path) is not None for path in bad)

    def test_a_binding_of_an_older_session_is_replaced(self, fleet: Fleet, ensemble: Ensemble) -> None:
        old = ensemble.open()
        old.create(fleet.binding("ps_0"), ephemeral=True)
        fleet.bindings.sync_available_saved_models(CONTAINER, saved("ps_0"))
        old.stop()
        stat = fleet.outside.exists(fleet.binding("ps_0"))
        assert stat is not None
        assert stat.ephemeralOwner == fleet.session.session_id

    def test_models_that_change_during_an_outage_are_bound_after_it(self, fleet: Fleet, ensemble: Ensemble) -> None:
        fleet.bindings.sync_available_saved_models(CONTAINER, saved("ps_0"))
        ensemble.disconnect(fleet.session)
        wait_until(lambda: fleet.session.is_away)
        fleet.bindings.sync_available_saved_models(CONTAINER, saved("ps_1"))
        ensemble.reconnect(fleet.session)
        folder = fleet.paths.model_bindings(MODEL)
        wait_until(lambda: fleet.outside.children(folder) == [f"ps_1:{CONTAINER}"])


def varint(number: int) -> bytes:
    result = b""
    while number > 0x7F:
        result += bytes([number & 0x7F | 0x80])
        number >>= 7
    return result + bytes([number])


def message(*fields: tuple[int, bytes]) -> bytes:
    return b"".join(varint(number << 3 | 2) + varint(len(content)) + content for number, content in fields)


def saved_model(name: str) -> bytes:
    attribute = message((1, b"model_name"), (2, message((2, name.encode()))))
    other = message((1, b"a"), (2, b"Const"), (5, message((1, b"model_name"), (2, message((2, b"wrong"))))))
    node = message((1, b"b"), (2, b"TfServingRemotePredict"), (5, message((1, b"T"), (2, b"\x18\x01"))), (5, attribute))
    graph = message((1, other), (1, node))
    return b"\x08\x01" + message((2, message((1, b"\x0d\0\0\0\0"), (2, graph))))


@pytest.fixture
def export(tmp_path: Path) -> Path:
    base = tmp_path / "exported_models"
    for name in ("entry", *(f"ps_{index}" for index in range(5))):
        (base / name / "9").mkdir(parents=True)
        (base / name / "10").mkdir(parents=True)
    (base / "entry" / "9" / "saved_model.pb").write_bytes(saved_model("old_name:ps_0"))
    (base / "entry" / "10" / "saved_model.pb").write_bytes(saved_model(f"{MODEL}:ps_0"))
    (base / "notes.txt").write_text("a file")
    (base / "empty").mkdir()
    (base / ".hidden" / "1").mkdir(parents=True)
    return base


class Control:
    def __init__(self, session: ZooKeeperSession) -> None:
        self.bzid = f"gip-{uuid.uuid4().hex}"
        self.session = session
        self.controller = Controller(session, self.bzid)
        self.layouts = Layouts(session, self.bzid)
        self.layout = f"/{self.bzid}/layouts/test_layout1"

    def members(self) -> list[str]:
        members: list[str] = self.controller.bzid_info()["layout_info"]["test_layout1"]
        return members


@pytest.fixture
def control(ensemble: Ensemble) -> Control:
    return Control(ensemble.open())


ALL = ["entry", "ps_0", "ps_1", "ps_2", "ps_3", "ps_4"]


class TestController:
    # T25, D44
    def test_t25_d44_an_export_is_declared(self, control: Control, export: Path) -> None:
        control.controller.declare(str(export), model_name=MODEL, overwrite=True)
        assert {each.sub_graph for each in control.layouts.list_saved_models(MODEL)} == set(ALL)
        info = control.controller.bzid_info()["model_info"][MODEL]
        configs = {name: json.loads(info[name]["deploy_config"]) for name in ALL}
        assert configs["entry"] == {"model_base_path": f"{export}/entry", "version_policy": "latest"}
        assert {configs[name]["version_policy"] for name in ALL[1:]} == {"latest_once"}

    def test_a_relative_folder_is_declared_by_its_absolute_path(
        self, control: Control, export: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(export.parent)
        control.controller.declare(f"./{export.name}/", model_name=MODEL)
        info = control.controller.bzid_info()["model_info"][MODEL]
        assert json.loads(info["entry"]["deploy_config"])["model_base_path"] == f"{export}/entry"

    # T26, T27, T28, T29
    def test_t26_to_t29_sub_graphs_are_published_and_unpublished(self, control: Control, export: Path) -> None:
        control.controller.declare(str(export))
        control.controller.publish(control.layout, f"{MODEL}:entry")
        assert control.members() == [f"{MODEL}:entry"]
        control.controller.publish(control.layout, f"{MODEL}:ps_*")
        assert control.members() == [f"{MODEL}:{name}" for name in ALL]
        control.controller.unpublish(control.layout, f"{MODEL}:ps_*")
        assert control.members() == [f"{MODEL}:entry"]
        control.controller.unpublish(control.layout, f"{MODEL}:entry")
        assert control.members() == []

    # D44
    def test_d44_the_newest_entry_names_the_model(self, control: Control, export: Path) -> None:
        assert {each.model_name for each in control.controller.declare(str(export))} == {MODEL}
        with pytest.raises(ConfigError, match=f"{MODEL} exists and not in overwrite mode"):
            control.controller.declare(str(export))
        control.controller.declare(str(export), overwrite=True)

    def test_a_given_name_wins_and_the_difference_is_logged(
        self, control: Control, export: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        assert {each.model_name for each in control.controller.declare(str(export), model_name="mine")} == {"mine"}
        assert f"given=mine export={MODEL}" in caplog.text

    def test_the_manifest_of_our_exports_names_the_model(self, control: Control, export: Path) -> None:
        (export / "entry" / "11").mkdir()
        (export / "entry" / "11" / MANIFEST).write_bytes(seal({"name": "clicks"}))
        assert {each.model_name for each in control.controller.declare(str(export))} == {"clicks"}
        (export / "entry" / "11" / MANIFEST).write_bytes(b"{}")
        with pytest.raises(ManifestInvalid, match=MANIFEST):
            control.controller.declare(str(export))

    def test_an_export_that_names_no_model_needs_a_name(self, control: Control, export: Path) -> None:
        path = export / "entry" / "10" / "saved_model.pb"
        path.write_bytes(saved_model("x")[:20])
        with pytest.raises(RecordCorrupt, match=r"saved_model\.pb"):
            control.controller.declare(str(export))
        path.unlink()
        with pytest.raises(ConfigError, match="Model name is None"):
            control.controller.declare(str(export))

    @pytest.mark.parametrize("name", ["a/b", "..", ""])
    def test_names_that_break_paths_are_refused(self, control: Control, export: Path, name: str) -> None:
        (export / "entry" / "10" / "saved_model.pb").write_bytes(saved_model("a/b"))
        with pytest.raises(ConfigError, match="model_name"):
            control.controller.declare(str(export), model_name=name)

    def test_bad_arguments_are_named(self, control: Control, tmp_path: Path) -> None:
        for export_base, part in (
            ("", "--export-base"),
            (str(tmp_path / "no"), "no'"),
            (str(tmp_path), "no sub-model"),
        ):
            with pytest.raises(ConfigError, match=part):
                control.controller.declare(export_base)
        with pytest.raises(ConfigError, match=r"only entry \+ ps architecture supported"):
            control.controller.declare(str(tmp_path), arch="dense")
        for layout, pattern, part in (
            ("", "m:*", "--layout"),
            ("l", "m", "m'"),
            ("l", "m:*", "matches no"),
            ("a:b", "m:*", "a:b"),
        ):
            with pytest.raises(ConfigError, match=part):
                control.controller.publish(layout, pattern)
            with pytest.raises(ConfigError, match=part):
                control.controller.unpublish(layout, pattern)

    def test_unpub_also_removes_sub_graphs_whose_declaration_is_gone(self, control: Control, export: Path) -> None:
        control.controller.declare(str(export))
        control.controller.publish("test_layout1", f"{MODEL}:*")
        delete_tree(control.session, f"/{control.bzid}/saved_models/{MODEL}")
        control.controller.unpublish("test_layout1", f"{MODEL}:ps_[0-3]")
        assert control.members() == [f"{MODEL}:entry", f"{MODEL}:ps_4"]


def test_the_command_line_declares_publishes_and_shows(server: ZooKeeperServer, export: Path) -> None:
    bzid = f"gip-{uuid.uuid4().hex}"

    def run(*arguments: str) -> str:
        options = ["agent", "controller", *arguments, "--zk_servers", server.address, "--bzid", bzid]
        result = CliRunner().invoke(program.app, options, catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return result.stdout

    assert "test_ffm_model:entry, test_ffm_model:ps_0" in run("decl", "--export_base", str(export))
    assert "test_ffm_model:ps_4" in run("pub", "--layout", "main", "--model_name", f"{MODEL}:ps_4")
    shown = run("--json")
    assert json.loads(shown)["layout_info"] == {"main": [f"{MODEL}:ps_4"]}
    text = run("bzid_info")
    assert text.startswith('\n{\n  "model_info"')
    assert json.loads(text) == json.loads(shown)
    assert json.loads(run("--cmd", "unpub", "--layout", "main", "--model_name", f"{MODEL}:*", "--json")) == {
        "command": "unpub",
        "saved_models": [f"{MODEL}:{name}" for name in ALL],
    }


class _Lookup:
    def get_replicas_with_extra_info(self, server_type: str, task: int) -> dict[str, dict[str, object]]:
        assert server_type == "ps"
        return {f"10.0.0.{task}:1": {"idc": "lf", "cluster": "default", "replica_id": 7}}


# D69
def test_d69_sync_targets_of_a_version_1_fleet() -> None:
    targets = ReplicaTargets(_Lookup())
    targets.subscribe_model("m")
    extra = {"idc": "lf", "cluster": "default", "replica_id": 7}
    assert targets.get_sync_targets("ps_1") == ("ps_1", {"10.0.0.1:1": extra})
    for name in ("entry", "dense_0", "ps"):
        with pytest.raises(ConfigError, match=name):
            targets.get_sync_targets(name)
