update queen.partition_consumers set lease_id = null, lease_to = null, lease_expires_at = null, ready_at = clock_timestamp()
where group_id = $1 and lease_id is not null
