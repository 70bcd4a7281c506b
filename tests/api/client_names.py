"""Every field and parameter that an official client sends to a route of ours, by route. Names only.

Python: all releases on PyPI from 0.7.4 to 2.6.0. JavaScript, Go and C++: the sources in the project's repository, of
both the first and the second JavaScript client. Where users choose the names (options of a queue), the defaults.
"""

from __future__ import annotations

PUSH_BODY = ("items", "qos0", "bufferMs", "bufferMax")
PUSH_ITEM = ("queue", "partition", "payload", "transactionId", "traceId")
ACK = ("transactionId", "partitionId", "leaseId", "status", "error", "consumerGroup")
ACK_BATCH_BODY = ("acknowledgments", "consumerGroup")
ACK_BATCH_ENTRY = ("transactionId", "partitionId", "leaseId", "status", "error")
TRANSACTION_BODY = ("operations", "requiredLeases", "kv", "timers")
TRANSACTION_PUSH = ("type", "items")
TRANSACTION_PUSH_ITEM = ("queue", "payload", "partition", "transactionId", "traceId")
TRANSACTION_ACK = ("type", "transactionId", "partitionId", "status", "consumerGroup", "leaseId", "error")
CONFIGURE_BODY = ("queue", "namespace", "task", "options")
CONFIGURE_OPTIONS = (
    "leaseTime",
    "retryLimit",
    "retryDelay",
    "priority",
    "delayedProcessing",
    "windowBuffer",
    "maxSize",
    "ttl",
    "deadLetterQueue",
    "dlqAfterMaxRetries",
    "maxWaitTimeSeconds",
    "retentionEnabled",
    "retentionSeconds",
    "completedRetentionSeconds",
    "encryptionEnabled",
)
LEASE_BODY = ("seconds",)
POP_QUERY = (
    "batch",
    "wait",
    "timeout",
    "consumerGroup",
    "namespace",
    "task",
    "autoAck",
    "subscriptionMode",
    "subscriptionFrom",
    "partitions",
    "autopilot",
    "conflation",
    "frames",
)
ANALYTICS_QUERY = ("from", "to", "interval", "queue", "namespace", "task")
