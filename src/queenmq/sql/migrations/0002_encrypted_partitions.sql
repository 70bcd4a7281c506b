-- Whether the queue of a partition is encrypted, beside the row that every push writes: a push by somebody who has not
-- heard of it yet is refused instead of stored in clear.

alter table queen.partition_lookup add column encrypted boolean not null default false;
comment on column queen.partition_lookup.encrypted is 'the queue has encryptionEnabled';
update queen.partition_lookup l set encrypted = true
    from queen.queues q where q.queue_id = l.queue_id and q.encryption_enabled;
