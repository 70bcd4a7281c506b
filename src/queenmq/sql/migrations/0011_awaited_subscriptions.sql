-- When groups that start with what is new popped a queue, a partition or a namespace that was not there yet. The first such pop
-- decides where the group starts, whichever pop finds the first message, on whichever server. `queen db sweep` removes old rows.
create table queen.awaited_subscriptions (
    group_name text not null,
    topic      text not null,
    since      timestamptz not null,
    seen_at    timestamptz not null
);
comment on table queen.awaited_subscriptions is 'topic: see queen.awaited_topic; since: when its first pop arrived; seen_at: a recent pop, to the hour';
-- The names of a topic may be longer together than what fits in an entry of an index.
create unique index awaited_subscriptions_topic on queen.awaited_subscriptions (group_name, hashtextextended(topic, 0));
