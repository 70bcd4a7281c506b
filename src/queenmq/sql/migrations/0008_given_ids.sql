-- Which ids the server gave to messages without a transactionId, in one row for each flush and partition: a later push under such
-- an id is a duplicate. A row for a transactionId does not grow: its header has room for the bit that says NULL.

alter table queen.dedup add column given int4multirange;
comment on column queen.dedup.given is
    'h is the key of the base of a flush: the indexes whose ids are the transactionIds of their messages; seq is the number of index 0. NULL: h is the key of one transactionId';
