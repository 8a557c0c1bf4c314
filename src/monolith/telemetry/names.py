"""The name, kind and meaning of every metric that Monolith exports: the one list a dashboard can trust.

This module holds descriptions only; ``Registry`` counts. Names follow Prometheus: base units, ``_total`` for counters.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = [
    "ALL",
    "BOUNDS_US",
    "MetricSpec",
    "AGENT_FAILED_RELOADS_TOTAL",
    "AGENT_HEARTBEAT_AGE_SECONDS",
    "AGENT_KNOWN_REPLICAS",
    "AGENT_LEADER",
    "AGENT_LOST_SESSIONS_TOTAL",
    "AGENT_MAP_AGE_SECONDS",
    "AGENT_OWN_REPLICAS",
    "AGENT_RELOADS_TOTAL",
    "AGENT_RESTARTS_TOTAL",
    "AGENT_SERVED_VERSION",
    "AGENT_UNFIT_MODELS",
    "BACKGROUND_THREAD_UP",
    "CANARY_HELD",
    "CANARY_LIMIT",
    "CANARY_MEASURE",
    "CANARY_ROWS",
    "CANARY_TRIALS_TOTAL",
    "CHECKPOINT_AGE_SECONDS",
    "CLOCK_SKEW_TOTAL",
    "DEMO_AUC",
    "EVENT_STAGE_SECONDS",
    "EVENT_TO_SERVABLE_SECONDS",
    "JOIN_CLOCK_JUMPS_TOTAL",
    "JOIN_COMMITS_TOTAL",
    "JOIN_COMMIT_FAILURES_TOTAL",
    "JOIN_COMMIT_SECONDS_TOTAL",
    "JOIN_DEAD_LETTERS_TOTAL",
    "JOIN_EVENTS_TOTAL",
    "JOIN_GROUP_UP",
    "JOIN_HELD_ACTIONS",
    "JOIN_IDLE_PARTITIONS",
    "JOIN_LOST_RECORDS_TOTAL",
    "JOIN_OPEN_IMPRESSIONS",
    "JOIN_RECORDS_TOTAL",
    "JOIN_ROWS_TOTAL",
    "JOIN_SNAPSHOTS_TOTAL",
    "JOIN_STATE_BYTES",
    "JOIN_WATERMARK_AGE_SECONDS",
    "KAFKA_ERRORS_TOTAL",
    "KAFKA_LAG_RECORDS",
    "KAFKA_RECORDS_TOTAL",
    "LOG_APPENDED_RECORDS_TOTAL",
    "LOG_APPEND_BYTES_TOTAL",
    "LOG_APPEND_FAILURES_TOTAL",
    "LOG_CORRUPT_BATCHES_TOTAL",
    "LOG_FAILED_PARTITIONS",
    "LOG_FSYNCS_TOTAL",
    "LOG_FSYNC_SECONDS_TOTAL",
    "LOG_LAG_RECORDS",
    "LOG_LAG_SECONDS",
    "LOG_LOST_RECORDS_TOTAL",
    "LOG_RECORDS_TOTAL",
    "LOG_TORN_TAILS_TOTAL",
    "LOG_WAITING_BYTES",
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
    "PUBLISH_AGE_SECONDS",
    "PUSH_FAILURES_TOTAL",
    "PUSH_LAG_SECONDS",
    "PUSH_ROWS_TOTAL",
    "PUSH_WAITING_ROWS",
    "RETRY_FAILURES_TOTAL",
    "SERVING_ACCEPT_PAUSES_TOTAL",
    "SERVING_BATCHES_TOTAL",
    "SERVING_BATCH_WAIT_SECONDS_TOTAL",
    "SERVING_DEGRADED_TOTAL",
    "SERVING_LOGGED_REQUESTS_TOTAL",
    "SERVING_QUEUED_ROWS",
    "SERVING_REMOTE_CALLS_TOTAL",
    "SERVING_REQUESTS_TOTAL",
    "SERVING_NATIVE_REQUESTS_TOTAL",
    "SERVING_REQUEST_SECONDS",
    "SERVING_ROWS_TOTAL",
    "SERVING_UP",
    "SERVING_VERSION_STATE",
    "SYNC_AGE_SECONDS",
    "SYNC_CUT",
    "SYNC_CUTS_BEHIND",
    "SYNC_FAILURES_TOTAL",
    "SYNC_LAG_SECONDS",
    "SYNC_PUBLISH_TO_SERVABLE_SECONDS",
    "SYNC_SEQUENCE",
    "TABLE_BYTES",
    "TABLE_CLOCK_SECONDS",
    "TABLE_EVICTED_ROWS_TOTAL",
    "TABLE_FULL_EVICTED_ROWS_TOTAL",
    "TABLE_NONFINITE_GRADIENTS_TOTAL",
    "TABLE_NOT_ADMITTED_IDS_TOTAL",
    "TABLE_ROWS",
    "TRAIN_EVENT_TIMES_CLAMPED_TOTAL",
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
class MetricSpec:
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


TABLE_ROWS = MetricSpec(
    name="monolith_table_rows",
    kind="gauge",
    help="Rows that the table holds.",
    labels=("table",),
)
TABLE_BYTES = MetricSpec(
    name="monolith_table_bytes",
    kind="gauge",
    help="Memory that the table holds, index and free rows included.",
    labels=("table",),
)
TABLE_CLOCK_SECONDS = MetricSpec(
    name="monolith_table_clock_seconds",
    kind="gauge",
    help="Event clock of the table, unix seconds; rows expire by it.",
    labels=("table",),
)
TABLE_EVICTED_ROWS_TOTAL = MetricSpec(
    name="monolith_table_evicted_rows_total",
    kind="counter",
    help="Rows removed because their last event is older than the slot's limit.",
    labels=("table",),
)
TABLE_FULL_EVICTED_ROWS_TOTAL = MetricSpec(
    name="monolith_table_full_evicted_rows_total",
    kind="counter",
    help="Least recently updated rows removed because the table was full.",
    labels=("table",),
)
TABLE_NOT_ADMITTED_IDS_TOTAL = MetricSpec(
    name="monolith_table_not_admitted_ids_total",
    kind="counter",
    help="Ids without a row that occurred too rarely to get one.",
    labels=("table",),
)
TABLE_NONFINITE_GRADIENTS_TOTAL = MetricSpec(
    name="monolith_table_nonfinite_gradients_total",
    kind="counter",
    help="Gradient rows skipped because they held NaN or infinity.",
    labels=("table",),
)
TRAIN_STEP = MetricSpec(
    name="monolith_train_step",
    kind="gauge",
    help="Steps of the model over all its runs.",
)
TRAIN_STEPS_TOTAL = MetricSpec(
    name="monolith_train_steps_total",
    kind="counter",
    help="Steps that this process has finished.",
)
TRAIN_SAMPLES_TOTAL = MetricSpec(
    name="monolith_train_samples_total",
    kind="counter",
    help="Rows of all batches that this process has trained on.",
)
TRAIN_IDS_TOTAL = MetricSpec(
    name="monolith_train_ids_total",
    kind="counter",
    help="Occurrences of ids in all batches that this process has trained on.",
)
TRAIN_LOSS = MetricSpec(
    name="monolith_train_loss",
    kind="gauge",
    help="Loss per example of the last batch: heads, extra losses and layer losses added up.",
)
TRAIN_HEAD = MetricSpec(
    name="monolith_train_head",
    kind="gauge",
    help="A quality metric of a head, such as auc or log_loss, over the last window, scored before the update.",
    labels=("head", "metric"),
)
TRAIN_STEP_SECONDS = MetricSpec(
    name="monolith_train_step_seconds",
    kind="histogram",
    help="From the end of one step to the end of the next.",
    bounds_us=_STEP_BOUNDS_US,
)
TRAIN_EVENT_TIMES_CLAMPED_TOTAL = MetricSpec(
    name="monolith_train_event_times_clamped_total",
    kind="counter",
    help="Records whose event time was further ahead of the clock than max_event_ahead_s.",
)
TRAIN_EVENT_TIME_SECONDS = MetricSpec(
    name="monolith_train_event_time_seconds",
    kind="gauge",
    help="Unix time of the newest event that this process has trained on.",
)
CHECKPOINT_AGE_SECONDS = MetricSpec(
    name="monolith_checkpoint_age_seconds",
    kind="gauge",
    help="Time since a checkpoint of this run became durable; since the start of the run before the first.",
)
RETRY_FAILURES_TOTAL = MetricSpec(
    name="monolith_retry_failures_total",
    kind="counter",
    help="Failed attempts of retried calls, by operation.",
    labels=("call",),
)
JOIN_HELD_ACTIONS = MetricSpec(
    name="monolith_join_held_actions",
    kind="gauge",
    help="Actions that wait for their impression.",
    labels=("group",),
)
JOIN_CLOCK_JUMPS_TOTAL = MetricSpec(
    name="monolith_join_clock_jumps_total",
    kind="counter",
    help="Lots whose append time was more than 60 s ahead of the reader's clock.",
    labels=("group", "direction"),
)
JOIN_COMMITS_TOTAL = MetricSpec(
    name="monolith_join_commits_total",
    kind="counter",
    help="Commits of a join group.",
    labels=("group",),
)
JOIN_COMMIT_FAILURES_TOTAL = MetricSpec(
    name="monolith_join_commit_failures_total",
    kind="counter",
    help="Failed attempts to write a commit, for example on a full disk.",
    labels=("group",),
)
JOIN_COMMIT_SECONDS_TOTAL = MetricSpec(
    name="monolith_join_commit_seconds_total",
    kind="counter",
    help="Time spent in commits of a join group.",
    labels=("group",),
)
JOIN_DEAD_LETTERS_TOTAL = MetricSpec(
    name="monolith_join_dead_letters_total",
    kind="counter",
    help="Input records that cannot be used, by reason.",
    labels=("group", "reason"),
)
JOIN_EVENTS_TOTAL = MetricSpec(
    name="monolith_join_events_total",
    kind="counter",
    help="Events by outcome other than a row: duplicates, late events, orphans, overflows, sampled rows, early closes.",
    labels=("group", "outcome"),
)
JOIN_GROUP_UP = MetricSpec(
    name="monolith_join_group_up",
    kind="gauge",
    help="1 while a join group runs, 0 after it failed.",
    labels=("group",),
)
JOIN_IDLE_PARTITIONS = MetricSpec(
    name="monolith_join_idle_partitions",
    kind="gauge",
    help="Input partitions that the watermark ignores.",
    labels=("group",),
)
JOIN_LOST_RECORDS_TOTAL = MetricSpec(
    name="monolith_join_lost_records_total",
    kind="counter",
    help="Input records that retention removed before the joiner read them, or that lay in a skipped damaged batch.",
    labels=("group", "topic"),
)
JOIN_OPEN_IMPRESSIONS = MetricSpec(
    name="monolith_join_open_impressions",
    kind="gauge",
    help="Impressions whose window is open.",
    labels=("group",),
)
JOIN_RECORDS_TOTAL = MetricSpec(
    name="monolith_join_records_total",
    kind="counter",
    help="Input records that the joiner read.",
    labels=("group",),
)
JOIN_ROWS_TOTAL = MetricSpec(
    name="monolith_join_rows_total",
    kind="counter",
    help="Examples that the joiner wrote.",
    labels=("group",),
)
JOIN_SNAPSHOTS_TOTAL = MetricSpec(
    name="monolith_join_snapshots_total",
    kind="counter",
    help="Snapshots of the state of a join group.",
    labels=("group",),
)
JOIN_STATE_BYTES = MetricSpec(
    name="monolith_join_state_bytes",
    kind="gauge",
    help="State of a join group, in memory or on disk.",
    labels=("group", "place"),
)
JOIN_WATERMARK_AGE_SECONDS = MetricSpec(
    name="monolith_join_watermark_age_seconds",
    kind="gauge",
    help="Time between the clock and the watermark of a join group.",
    labels=("group",),
)
KAFKA_LAG_RECORDS = MetricSpec(
    name="monolith_kafka_lag_records",
    kind="gauge",
    help="Messages between the position of a Kafka source and the end of the partition.",
    labels=("topic", "partition"),
)
KAFKA_RECORDS_TOTAL = MetricSpec(
    name="monolith_kafka_records_total",
    kind="counter",
    help="Records that a Kafka source has delivered.",
    labels=("topic",),
)
KAFKA_ERRORS_TOTAL = MetricSpec(
    name="monolith_kafka_errors_total",
    kind="counter",
    help="Errors of a Kafka source by kind: broker, outage, commit or corrupt.",
    labels=("kind",),
)
LOG_RECORDS_TOTAL = MetricSpec(
    name="monolith_log_records_total",
    kind="counter",
    help="Records that an event log source has delivered.",
    labels=("topic",),
)
LOG_LAG_RECORDS = MetricSpec(
    name="monolith_log_lag_records",
    kind="gauge",
    help="Records between the position of an event log source and the visible end of the partition.",
    labels=("topic", "partition"),
)
LOG_LAG_SECONDS = MetricSpec(
    name="monolith_log_lag_seconds",
    kind="gauge",
    help="Age of the next unread record of a partition since its append; 0 at the end.",
    labels=("topic", "partition"),
)
LOG_LOST_RECORDS_TOTAL = MetricSpec(
    name="monolith_log_lost_records_total",
    kind="counter",
    help="Records that retention removed before an event log source read them.",
    labels=("topic", "partition"),
)
LOG_CORRUPT_BATCHES_TOTAL = MetricSpec(
    name="monolith_log_corrupt_batches_total",
    kind="counter",
    help="Damaged batches that an event log source skipped.",
    labels=("topic", "partition"),
)
LOG_APPENDED_RECORDS_TOTAL = MetricSpec(
    name="monolith_log_appended_records_total",
    kind="counter",
    help="Records that the writers of a process have appended to a topic.",
    labels=("topic",),
)
LOG_APPEND_BYTES_TOTAL = MetricSpec(
    name="monolith_log_append_bytes_total",
    kind="counter",
    help="Bytes that the writers of a process have appended to a topic.",
    labels=("topic",),
)
LOG_APPEND_FAILURES_TOTAL = MetricSpec(
    name="monolith_log_append_failures_total",
    kind="counter",
    help="Appends that the disk refused; the records wait in memory for the next attempt.",
    labels=("topic",),
)
LOG_FAILED_PARTITIONS = MetricSpec(
    name="monolith_log_failed_partitions",
    kind="gauge",
    help="Partitions of a topic that refuse appends after a failed sync, until monolith log repair.",
    labels=("topic",),
)
LOG_FSYNCS_TOTAL = MetricSpec(
    name="monolith_log_fsyncs_total",
    kind="counter",
    help="Syncs of segments by the writers of a process.",
    labels=("topic",),
)
LOG_FSYNC_SECONDS_TOTAL = MetricSpec(
    name="monolith_log_fsync_seconds_total",
    kind="counter",
    help="Time of these syncs.",
    labels=("topic",),
)
LOG_TORN_TAILS_TOTAL = MetricSpec(
    name="monolith_log_torn_tails_total",
    kind="counter",
    help="Torn tails that the writers of a process have cut at opening.",
    labels=("topic",),
)
LOG_WAITING_BYTES = MetricSpec(
    name="monolith_log_waiting_bytes",
    kind="gauge",
    help="Bytes that wait in the writers of a process for their append.",
    labels=("topic",),
)
PS_UP = MetricSpec(
    name="monolith_ps_up",
    kind="gauge",
    help="1 while the parameter server is healthy or degraded, else 0.",
)
PS_CALL_SECONDS = MetricSpec(
    name="monolith_ps_call_seconds",
    kind="histogram",
    help="Duration of a call at the parameter server; pull and push over any transport, other calls over gRPC.",
    labels=("call",),
)
PS_CALL_ERRORS_TOTAL = MetricSpec(
    name="monolith_ps_call_errors_total",
    kind="counter",
    help="Calls that the parameter server refused or failed.",
    labels=("call",),
)
PS_IDS_TOTAL = MetricSpec(
    name="monolith_ps_ids_total",
    kind="counter",
    help="Ids that were pulled from, or pushed to, the table.",
    labels=("table", "call"),
)
PS_REPEATED_PUSHES_TOTAL = MetricSpec(
    name="monolith_ps_repeated_pushes_total",
    kind="counter",
    help="Repeated pushes, which the server has not applied twice.",
)
PS_LATE_CALLS_TOTAL = MetricSpec(
    name="monolith_ps_late_calls_total",
    kind="counter",
    help="Calls whose deadline passed before they started.",
)
PS_CLIENTS = MetricSpec(
    name="monolith_ps_clients",
    kind="gauge",
    help="Clients whose pushes the parameter server remembers.",
)
PS_DELTA_SEQUENCE = MetricSpec(
    name="monolith_ps_delta_sequence",
    kind="gauge",
    help="The newest segment of the parameter server's delta log.",
)
PS_DELTA_AGE_SECONDS = MetricSpec(
    name="monolith_ps_delta_age_seconds",
    kind="gauge",
    help="Seconds since the delta log contained all updates of the parameter server.",
)
PS_DELTA_FAILURES_TOTAL = MetricSpec(
    name="monolith_ps_delta_failures_total",
    kind="counter",
    help="Failed writes of delta log segments; the next segment contains their updates.",
)
SERVING_UP = MetricSpec(
    name="monolith_serving_up",
    kind="gauge",
    help="1 while every configured model has an available version, else 0.",
)
SERVING_REQUEST_SECONDS = MetricSpec(
    name="monolith_serving_request_seconds",
    kind="histogram",
    help="Duration of a request from arrival to response.",
    labels=("model", "api"),
)
SERVING_REQUESTS_TOTAL = MetricSpec(
    name="monolith_serving_requests_total",
    kind="counter",
    help="Responses by gRPC status code; api is grpc or rest.",
    labels=("model", "api", "code"),
)
SERVING_ROWS_TOTAL = MetricSpec(
    name="monolith_serving_rows_total",
    kind="counter",
    help="Rows that models have scored.",
)
SERVING_BATCHES_TOTAL = MetricSpec(
    name="monolith_serving_batches_total",
    kind="counter",
    help="Calls of models; each computes a batch of requests.",
)
SERVING_BATCH_WAIT_SECONDS_TOTAL = MetricSpec(
    name="monolith_serving_batch_wait_seconds_total",
    kind="counter",
    help="Time that the first request of each batch waited.",
)
SERVING_QUEUED_ROWS = MetricSpec(
    name="monolith_serving_queued_rows",
    kind="gauge",
    help="Rows of requests in the queue of the models.",
)
SERVING_VERSION_STATE = MetricSpec(
    name="monolith_serving_version_state",
    kind="gauge",
    help="State of a version: 10 start, 20 loading, 30 available, 40 unloading, 50 ended.",
    labels=("model", "version"),
)
SERVING_DEGRADED_TOTAL = MetricSpec(
    name="monolith_serving_degraded_total",
    kind="counter",
    help="Responses computed without some of their rows, which no server delivered.",
    labels=("model",),
)
SERVING_REMOTE_CALLS_TOTAL = MetricSpec(
    name="monolith_serving_remote_calls_total",
    kind="counter",
    help="Calls to servers of sub-models; dropped: another replica was faster, or the deadline passed.",
    labels=("part", "outcome"),
)
SERVING_NATIVE_REQUESTS_TOTAL = MetricSpec(
    name="monolith_serving_native_requests_total",
    kind="counter",
    help="Requests that the native path answered without Python; also in the counts of all requests.",
)
SERVING_ACCEPT_PAUSES_TOTAL = MetricSpec(
    name="monolith_serving_accept_pauses_total",
    kind="counter",
    help="Times that the native server paused accepting connections for up to 1 s, because no descriptor was free.",
)
SERVING_LOGGED_REQUESTS_TOTAL = MetricSpec(
    name="monolith_serving_logged_requests_total",
    kind="counter",
    help="Sampled requests: written, or dropped because the log was behind; impressions of --log-requests likewise.",
    labels=("outcome",),
)
PUSH_ROWS_TOTAL = MetricSpec(
    name="monolith_push_rows_total",
    kind="counter",
    help="Rows that this run has pushed to a model server.",
    labels=("target",),
)
PUSH_FAILURES_TOTAL = MetricSpec(
    name="monolith_push_failures_total",
    kind="counter",
    help="Failed requests to a model server; their rows are sent again.",
    labels=("target",),
)
PUSH_WAITING_ROWS = MetricSpec(
    name="monolith_push_waiting_rows",
    kind="gauge",
    help="Changed rows that a model server lacks.",
    labels=("target",),
)
PUSH_LAG_SECONDS = MetricSpec(
    name="monolith_push_lag_seconds",
    kind="gauge",
    help="Age of the oldest changed row that a model server lacks; 0 without one.",
    labels=("target",),
)
CANARY_TRIALS_TOTAL = MetricSpec(
    name="monolith_canary_trials_total",
    kind="counter",
    help="Trials of published states on a sample of requests, by outcome: passed, refused, no_sample.",
    labels=("model", "outcome"),
)
CANARY_HELD = MetricSpec(
    name="monolith_canary_held",
    kind="gauge",
    help="1 while the version withholds the last published state, which its trial refused.",
    labels=("model", "version"),
)
CANARY_MEASURE = MetricSpec(
    name="monolith_canary_measure",
    kind="gauge",
    help="Measure of the last trial: the worst of all outputs.",
    labels=("model", "version", "measure"),
)
CANARY_LIMIT = MetricSpec(
    name="monolith_canary_limit",
    kind="gauge",
    help="Upper limit of a measure.",
    labels=("measure",),
)
CANARY_ROWS = MetricSpec(
    name="monolith_canary_rows",
    kind="gauge",
    help="Rows in the sample of requests for trials.",
    labels=("model",),
)
BACKGROUND_THREAD_UP = MetricSpec(
    name="monolith_background_thread_up",
    kind="gauge",
    help="Whether a background thread of the process runs: 1, or 0 after it died.",
    labels=("thread",),
)
PUBLISH_AGE_SECONDS = MetricSpec(
    name="monolith_publish_age_seconds",
    kind="gauge",
    help="Age of the newest cut that this trainer published. It grows while publishing fails, or while no row changes.",
)
SYNC_AGE_SECONDS = MetricSpec(
    name="monolith_sync_age_seconds",
    kind="gauge",
    help="Age of the cut that a version shows (of=cut), and of the newest event in it (of=event). It grows while the "
    "trainer, the publisher or the follower is dead.",
    labels=("model", "version", "of"),
)
SYNC_CUT = MetricSpec(
    name="monolith_sync_cut",
    kind="gauge",
    help="Number of the published cut that a version serves; 0 while it serves its export.",
    labels=("model", "version"),
)
SYNC_CUTS_BEHIND = MetricSpec(
    name="monolith_sync_cuts_behind",
    kind="gauge",
    help="Published cuts that a version does not serve yet.",
    labels=("model", "version"),
)
SYNC_LAG_SECONDS = MetricSpec(
    name="monolith_sync_lag_seconds",
    kind="gauge",
    help="Age of the newest published cut that a version does not serve yet; 0 if it serves it.",
    labels=("model", "version"),
)
SYNC_SEQUENCE = MetricSpec(
    name="monolith_sync_sequence",
    kind="gauge",
    help="Segment of a shard's delta log up to which a version is current.",
    labels=("model", "version", "shard"),
)
SYNC_FAILURES_TOTAL = MetricSpec(
    name="monolith_sync_failures_total",
    kind="counter",
    help="Failed attempts to apply a published cut; the version stayed as it was.",
    labels=("model", "version"),
)
SYNC_PUBLISH_TO_SERVABLE_SECONDS = MetricSpec(
    name="monolith_sync_publish_to_servable_seconds",
    kind="histogram",
    help="Time from the publication of a cut until a server can answer with it.",
    labels=("model",),
)
DEMO_AUC = MetricSpec(
    name="monolith_demo_auc",
    kind="gauge",
    help="AUC of the last pages of the demonstration, by the source of the scores.",
    labels=("kind",),
)
EVENT_STAGE_SECONDS = MetricSpec(
    name="monolith_event_stage_seconds",
    kind="histogram",
    help="Time of a row in one stage from its event to the server: ingest, join, train, publish or apply.",
    labels=("stage",),
    bounds_us=tuple(int(1000 * 1.27**power) for power in range(64)),
)
CLOCK_SKEW_TOTAL = MetricSpec(
    name="monolith_clock_skew_total",
    kind="counter",
    help="Sampled rows whose stage ends before it begins, because clocks of processes differ; they count as 0.",
    labels=("stage",),
)
EVENT_TO_SERVABLE_SECONDS = MetricSpec(
    name="monolith_event_to_servable_seconds",
    kind="histogram",
    help="Time from an event until a server can answer with its update.",
    labels=("model",),
)
AGENT_FAILED_RELOADS_TOTAL = MetricSpec(
    name="monolith_agent_failed_reloads_total",
    kind="counter",
    help="Reloads of a server's models that failed and are repeated.",
)
AGENT_HEARTBEAT_AGE_SECONDS = MetricSpec(
    name="monolith_agent_heartbeat_age_seconds",
    kind="gauge",
    help="Time since the last heartbeat of an entry server to this agent.",
)
AGENT_KNOWN_REPLICAS = MetricSpec(
    name="monolith_agent_known_replicas",
    kind="gauge",
    help="AVAILABLE replicas of a task that this agent knows.",
    labels=("task",),
)
AGENT_LEADER = MetricSpec(
    name="monolith_agent_leader",
    kind="gauge",
    help="1 if this agent schedules models for the fleet, else 0.",
)
AGENT_LOST_SESSIONS_TOTAL = MetricSpec(
    name="monolith_agent_lost_sessions_total",
    kind="counter",
    help="ZooKeeper sessions that this agent lost.",
)
AGENT_MAP_AGE_SECONDS = MetricSpec(
    name="monolith_agent_map_age_seconds",
    kind="gauge",
    help="Time since the replica map of this agent changed.",
)
AGENT_OWN_REPLICAS = MetricSpec(
    name="monolith_agent_own_replicas",
    kind="gauge",
    help="Own replicas of this agent by state.",
    labels=("state",),
)
AGENT_RELOADS_TOTAL = MetricSpec(
    name="monolith_agent_reloads_total",
    kind="counter",
    help="Reloads of a server's models.",
)
AGENT_RESTARTS_TOTAL = MetricSpec(
    name="monolith_agent_restarts_total",
    kind="counter",
    help="Restarts of servers after they ended.",
)
AGENT_SERVED_VERSION = MetricSpec(
    name="monolith_agent_served_version",
    kind="gauge",
    help="Version of a sub-model that a server of this agent serves.",
    labels=("sub_model",),
)
AGENT_UNFIT_MODELS = MetricSpec(
    name="monolith_agent_unfit_models",
    kind="gauge",
    help="Models or versions that do not fit into the free memory.",
)

ALL: tuple[MetricSpec, ...] = tuple(value for value in list(globals().values()) if isinstance(value, MetricSpec))
"""Every metric, in the order of this file."""
