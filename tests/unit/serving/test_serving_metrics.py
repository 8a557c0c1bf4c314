from __future__ import annotations

from monolith.rpc.status import Code
from monolith.serving.metrics import ServingMetrics


def test_a_response_is_counted_with_its_code_and_its_time() -> None:
    metrics = ServingMetrics()
    for seconds in (0.25, 0.5):
        metrics.request("clicks", "rest", Code.OK, seconds)
    text = metrics.registry.text()
    assert 'monolith_serving_requests_total{model="clicks",api="rest",code="OK"} 2' in text
    assert 'monolith_serving_request_seconds_count{model="clicks",api="rest"} 2' in text
    assert 'monolith_serving_request_seconds_sum{model="clicks",api="rest"} 0.75' in text
