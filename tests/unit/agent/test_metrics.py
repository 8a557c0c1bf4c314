"""The metrics page of an agent shows its samples and counters."""

from __future__ import annotations

from monolith.agent.metrics import AgentMetrics


def test_the_page_shows_samples_and_counters() -> None:
    metrics = AgentMetrics()
    metrics.count_lost_session()
    metrics.watch(
        lambda: {
            "own": ["AVAILABLE", "AVAILABLE", "LOADING"],
            "known": {"m:ps_0": 2},
            "versions": {"m:ps_0": 7},
            "map_age_s": 1.5,
            "heartbeat_age_s": None,
            "is_leader": 1,
            "restarts": 3,
        }
    )
    lines = metrics.registry.text().splitlines()
    for line in (
        "monolith_agent_lost_sessions_total 1",
        'monolith_agent_own_replicas{state="AVAILABLE"} 2',
        'monolith_agent_own_replicas{state="LOADING"} 1',
        'monolith_agent_known_replicas{task="m:ps_0"} 2',
        'monolith_agent_served_version{sub_model="m:ps_0"} 7',
        "monolith_agent_map_age_seconds 1.5",
        "monolith_agent_leader 1",
        "monolith_agent_restarts_total 3",
    ):
        assert line in lines, line
    assert not any(line.startswith("monolith_agent_heartbeat_age_seconds") for line in lines)


def test_a_page_without_version_metrics_has_all_others() -> None:
    metrics = AgentMetrics(has_versions=False)
    metrics.watch(lambda: {"versions": {"m:ps_0": 7}, "restarts": 2})
    text = metrics.registry.text()
    assert "monolith_agent_restarts_total 2" in text
    assert "served_version{" not in text
