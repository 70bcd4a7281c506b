-- What is known of a batch that failed as a whole, and of a lease that ended without settling anything.

-- Both are written on rare paths only; the statements of plain traffic neither read nor write them.
alter table queen.partition_consumers add column batch_limit integer, add column lapsed_lease_id uuid;
comment on column queen.partition_consumers.batch_limit is
    'how many messages the next lease covers at most, because a larger batch failed as a whole; counts only while there are retries';
comment on column queen.partition_consumers.lapsed_lease_id is
    'the last lease that expired or was given back; when it is last_lease_id too, no ack has ended that lease';
