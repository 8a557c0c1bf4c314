"""The name, kind and meaning of every metric that Monolith exports: the one list a dashboard can trust.

This module holds descriptions only; ``Registry`` counts. Names follow Prometheus: base units, ``_total`` for counters.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = [
    "ALL",
    "BOUNDS_US",
    "Metric",
    "CANARY_HELD",
    "CANARY_LIMIT",
    "CANARY_MEASURE",
    "CANARY_ROWS",
    "CANARY_TRIALS_TOTAL",
    "CHECKPOINT_AGE_SECONDS",
    "EVENT_TO_SERVABLE_SECONDS",
    "KAFKA_ERRORS_TOTAL",
    "KAFKA_LAG_RECORDS",
    "KAFKA_RECORDS_TOTAL",
    "PS_CALL_ERRORS_TOTAL",
    "PS_CALL_SECONDS",
    "PS_CLIENTS",
    "PS_DELTA_AGE_SECONDS",
    "PS_DELTA_FAILURES_TOTAL",
    "PS_DELTA_SEQUENCE",
    "PS_IDS_TOTAL",
    "PS_LATE_CALLS_TOTAL",
    "PS_REPEATED_PUSHES_TOTAL",
    "PS_UP",
    "PUSH_FAILURES_TOTAL",
    "PUSH_LAG_SECONDS",
    "PUSH_ROWS_TOTAL",
    "PUSH_WAITING_ROWS",
    "RETRY_FAILURES_TOTAL",
    "SERVING_BATCHES_TOTAL",
    "SERVING_BATCH_WAIT_SECONDS_TOTAL",
    "SERVING_DEGRADED_TOTAL",
    "SERVING_LOGGED_REQUESTS_TOTAL",
    "SERVING_QUEUED_ROWS",
    "SERVING_REMOTE_CALLS_TOTAL",
    "SERVING_REQUESTS_TOTAL",
    "SERVING_REQUEST_SECONDS",
    "SERVING_ROWS_TOTAL",
    "SERVING_UP",
    "SERVING_VERSION_STATE",
    "SYNC_CUT",
    "SYNC_CUTS_BEHIND",
    "SYNC_FAILURES_TOTAL",
    "SYNC_LAG_SECONDS",
    "SYNC_PUBLISH_TO_SERVABLE_SECONDS",
    "SYNC_SEQUENCE",
    "TABLE_BYTES",
    "TABLE_EVICTED_ROWS_TOTAL",
    "TABLE_NONFINITE_GRADIENTS_TOTAL",
    "TABLE_NOT_ADMITTED_IDS_TOTAL",
    "TABLE_ROWS",
    "TRAIN_EVENT_TIME_SECONDS",
    "TRAIN_HEAD",
    "TRAIN_IDS_TOTAL",
    "TRAIN_LOSS",
    "TRAIN_SAMPLES_TOTAL",
    "TRAIN_STEP",
    "TRAIN_STEPS_TOTAL",
    "TRAIN_STEP_SECONDS",
]


BOUNDS_US = (50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000)
"""Upper ends of a histogram's buckets in microseconds, as in the native parameter server; one more holds the rest."""

_STEP_BOUNDS_US = (*BOUNDS_US[4:], 2_500_000, 5_000_000, 10_000_000, 30_000_000)


@dataclass(frozen=True, kw_only=True, slots=True)
class Metric:
    """One exported number."""

    name: str
    """The full name, with prefix and unit."""

    kind: Literal["counter", "gauge", "histogram"]
    """How it moves: only up, both ways, or as a distribution."""

    help: str
    """One sentence for the person who reads the graph."""

    labels: tuple[str, ...] = ()
    """Names of its labels, in the order of the label values."""

    bounds_us: tuple[int, ...] = BOUNDS_US
    """Upper ends of a histogram's buckets in microseconds."""


TABLE_ROWS = Metric(
    name="monolith_table_rows",
    kind="gauge",
    help="Rows that the table holds.",
    labels=("table",),
)
TABLE_BYTES = Metric(
    name="monolith_table_bytes",
    kind="gauge",
    help="Memory that the table holds, index and free rows included.",
    labels=("table",),
)
TABLE_EVICTED_ROWS_TOTAL = Metric(
    name="monolith_table_evicted_rows_total",
    kind="counter",
    help="Rows removed because their last event is older than the slot's limit.",
    labels=("table",),
)
TABLE_NOT_ADMITTED_IDS_TOTAL = Metric(
    name="monolith_table_not_admitted_ids_total",
    kind="counter",
    help="Absent ids that an update named too rarely to be given a row.",
    labels=("table",),
)
TABLE_NONFINITE_GRADIENTS_TOTAL = Metric(
    name="monolith_table_nonfinite_gradients_total",
    kind="counter",
    help="Gradient rows skipped because they held NaN or infinity.",
    labels=("table",),
)
TRAIN_STEP = Metric(
    name="monolith_train_step",
    kind="gauge",
    help="Steps that the model has learnt from, over all its runs.",
)
TRAIN_STEPS_TOTAL = Metric(
    name="monolith_train_steps_total",
    kind="counter",
    help="Steps that this process has finished.",
)
TRAIN_SAMPLES_TOTAL = Metric(
    name="monolith_train_samples_total",
    kind="counter",
    help="Rows of all batches that this process has learnt from.",
)
TRAIN_IDS_TOTAL = Metric(
    name="monolith_train_ids_total",
    kind="counter",
    help="Occurrences of ids in all batches that this process has learnt from.",
)
TRAIN_LOSS = Metric(
    name="monolith_train_loss",
    kind="gauge",
    help="Loss per example of the last batch: heads, extra losses and layer losses added up.",
)
TRAIN_HEAD = Metric(
    name="monolith_train_head",
    kind="gauge",
    help="A quality metric of a head, such as auc or log_loss, over the last window of steps, scored before learning.",
    labels=("head", "metric"),
)
TRAIN_STEP_SECONDS = Metric(
    name="monolith_train_step_seconds",
    kind="histogram",
    help="From the end of one step to the end of the next.",
    bounds_us=_STEP_BOUNDS_US,
)
TRAIN_EVENT_TIME_SECONDS = Metric(
    name="monolith_train_event_time_seconds",
    kind="gauge",
    help="Unix time of the newest event that was learnt from.",
)
CHECKPOINT_AGE_SECONDS = Metric(
    name="monolith_checkpoint_age_seconds",
    kind="gauge",
    help="Time since a checkpoint of this run became safe; since the run's start before the first.",
)
RETRY_FAILURES_TOTAL = Metric(
    name="monolith_retry_failures_total",
    kind="counter",
    help="Failed attempts of calls that are retried, by what was called.",
    labels=("call",),
)
KAFKA_LAG_RECORDS = Metric(
    name="monolith_kafka_lag_records",
    kind="gauge",
    help="Messages between what a Kafka source has handed out and the end of the partition.",
    labels=("topic", "partition"),
)
KAFKA_RECORDS_TOTAL = Metric(
    name="monolith_kafka_records_total",
    kind="counter",
    help="Records that a Kafka source has handed out.",
    labels=("topic",),
)
KAFKA_ERRORS_TOTAL = Metric(
    name="monolith_kafka_errors_total",
    kind="counter",
    help="What went wrong in a Kafka source: broker, outage, commit or corrupt.",
    labels=("kind",),
)
PS_UP = Metric(
    name="monolith_ps_up",
    kind="gauge",
    help="1 while the parameter server is healthy or degraded, 0 while it is not.",
)
PS_CALL_SECONDS = Metric(
    name="monolith_ps_call_seconds",
    kind="histogram",
    help="Time that the parameter server takes for a call; pull and push over any transport, the others over gRPC.",
    labels=("call",),
)
PS_CALL_ERRORS_TOTAL = Metric(
    name="monolith_ps_call_errors_total",
    kind="counter",
    help="Calls that the parameter server refused or failed.",
    labels=("call",),
)
PS_IDS_TOTAL = Metric(
    name="monolith_ps_ids_total",
    kind="counter",
    help="Ids that were pulled from, or pushed to, the table.",
    labels=("table", "call"),
)
PS_REPEATED_PUSHES_TOTAL = Metric(
    name="monolith_ps_repeated_pushes_total",
    kind="counter",
    help="Pushes that came again after they were applied, and were not applied twice.",
)
PS_LATE_CALLS_TOTAL = Metric(
    name="monolith_ps_late_calls_total",
    kind="counter",
    help="Calls whose deadline had passed before their turn came.",
)
PS_CLIENTS = Metric(
    name="monolith_ps_clients",
    kind="gauge",
    help="Clients whose pushes the parameter server remembers.",
)
PS_DELTA_SEQUENCE = Metric(
    name="monolith_ps_delta_sequence",
    kind="gauge",
    help="The newest segment of the parameter server's delta log.",
)
PS_DELTA_AGE_SECONDS = Metric(
    name="monolith_ps_delta_age_seconds",
    kind="gauge",
    help="Seconds since everything that the parameter server had learnt was in its delta log.",
)
PS_DELTA_FAILURES_TOTAL = Metric(
    name="monolith_ps_delta_failures_total",
    kind="counter",
    help="Segments of the delta log that could not be written; their changes come with the next one.",
)
SERVING_UP = Metric(
    name="monolith_serving_up",
    kind="gauge",
    help="1 while every configured model has a version that answers, 0 before that and while the server stops.",
)
SERVING_REQUEST_SECONDS = Metric(
    name="monolith_serving_request_seconds",
    kind="histogram",
    help="From a request's arrival to its answer.",
    labels=("model", "api"),
)
SERVING_REQUESTS_TOTAL = Metric(
    name="monolith_serving_requests_total",
    kind="counter",
    help="Requests that were answered, by gRPC's status code; api is grpc or rest.",
    labels=("model", "api", "code"),
)
SERVING_ROWS_TOTAL = Metric(
    name="monolith_serving_rows_total",
    kind="counter",
    help="Rows that models have scored.",
)
SERVING_BATCHES_TOTAL = Metric(
    name="monolith_serving_batches_total",
    kind="counter",
    help="Calls of models, each with the requests that were computed together.",
)
SERVING_BATCH_WAIT_SECONDS_TOTAL = Metric(
    name="monolith_serving_batch_wait_seconds_total",
    kind="counter",
    help="Time that the first request of each batch has waited.",
)
SERVING_QUEUED_ROWS = Metric(
    name="monolith_serving_queued_rows",
    kind="gauge",
    help="Rows of requests that wait for a model's thread.",
)
SERVING_VERSION_STATE = Metric(
    name="monolith_serving_version_state",
    kind="gauge",
    help="State of a version: 10 start, 20 loading, 30 available, 40 unloading, 50 ended.",
    labels=("model", "version"),
)
SERVING_DEGRADED_TOTAL = Metric(
    name="monolith_serving_degraded_total",
    kind="counter",
    help="Answers that were computed without some of their rows, which no server gave.",
    labels=("model",),
)
SERVING_REMOTE_CALLS_TOTAL = Metric(
    name="monolith_serving_remote_calls_total",
    kind="counter",
    help="Calls to servers of sub-models; dropped: another replica was faster, or the time was over.",
    labels=("part", "outcome"),
)
SERVING_LOGGED_REQUESTS_TOTAL = Metric(
    name="monolith_serving_logged_requests_total",
    kind="counter",
    help="Sampled requests, by whether they were written or dropped because the log was behind.",
    labels=("outcome",),
)
PUSH_ROWS_TOTAL = Metric(
    name="monolith_push_rows_total",
    kind="counter",
    help="Rows that a model server has taken from this run.",
    labels=("target",),
)
PUSH_FAILURES_TOTAL = Metric(
    name="monolith_push_failures_total",
    kind="counter",
    help="Requests to a model server that failed; their rows were put back.",
    labels=("target",),
)
PUSH_WAITING_ROWS = Metric(
    name="monolith_push_waiting_rows",
    kind="gauge",
    help="Rows that have changed and that a model server does not have yet.",
    labels=("target",),
)
PUSH_LAG_SECONDS = Metric(
    name="monolith_push_lag_seconds",
    kind="gauge",
    help="How long the oldest of these rows has been waiting; 0 when there is none.",
    labels=("target",),
)
CANARY_TRIALS_TOTAL = Metric(
    name="monolith_canary_trials_total",
    kind="counter",
    help="Published states that were tried on a sample of requests, by how it ended: passed, refused, no_sample.",
    labels=("model", "outcome"),
)
CANARY_HELD = Metric(
    name="monolith_canary_held",
    kind="gauge",
    help="1 while the last published state that was tried is not shown because it was refused.",
    labels=("model", "version"),
)
CANARY_MEASURE = Metric(
    name="monolith_canary_measure",
    kind="gauge",
    help="What the last trial found: the worst of all outputs.",
    labels=("model", "version", "measure"),
)
CANARY_LIMIT = Metric(
    name="monolith_canary_limit",
    kind="gauge",
    help="What a measure may be at most.",
    labels=("measure",),
)
CANARY_ROWS = Metric(
    name="monolith_canary_rows",
    kind="gauge",
    help="Rows of the sample of requests that are kept for trials.",
    labels=("model",),
)
SYNC_CUT = Metric(
    name="monolith_sync_cut",
    kind="gauge",
    help="Number of the published cut that a version shows; 0 while it shows what was exported.",
    labels=("model", "version"),
)
SYNC_CUTS_BEHIND = Metric(
    name="monolith_sync_cuts_behind",
    kind="gauge",
    help="Cuts that are published and that a version does not show yet.",
    labels=("model", "version"),
)
SYNC_LAG_SECONDS = Metric(
    name="monolith_sync_lag_seconds",
    kind="gauge",
    help="How long the newest published cut has been waiting for a version; 0 when it shows it.",
    labels=("model", "version"),
)
SYNC_SEQUENCE = Metric(
    name="monolith_sync_sequence",
    kind="gauge",
    help="Segment of a shard's delta log that a version shows the state of.",
    labels=("model", "version", "shard"),
)
SYNC_FAILURES_TOTAL = Metric(
    name="monolith_sync_failures_total",
    kind="counter",
    help="Attempts to take a published cut that failed; the version stayed as it was.",
    labels=("model", "version"),
)
SYNC_PUBLISH_TO_SERVABLE_SECONDS = Metric(
    name="monolith_sync_publish_to_servable_seconds",
    kind="histogram",
    help="From the publishing of a cut to the moment a server can answer with it.",
    labels=("model",),
)
EVENT_TO_SERVABLE_SECONDS = Metric(
    name="monolith_event_to_servable_seconds",
    kind="histogram",
    help="From the time of an event to the moment a server can answer with what was learnt from it.",
    labels=("model",),
)

ALL: tuple[Metric, ...] = tuple(value for value in list(globals().values()) if isinstance(value, Metric))
"""Every metric, in the order of this file."""
