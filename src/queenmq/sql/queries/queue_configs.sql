-- name: queue_configs
-- What a server keeps in mind of every queue.
select name, queue_id::bigint, version, namespace, task, priority, lease_time, retry_limit, retry_delay, delayed_processing, window_buffer, ttl,
       max_size, encryption_enabled
from queen.queues;

-- name: queue_configs_of
-- The same of the queues with these names.
select name, queue_id::bigint, version, namespace, task, priority, lease_time, retry_limit, retry_delay, delayed_processing, window_buffer, ttl,
       max_size, encryption_enabled
from queen.queues where name = any ($1::text[]);
