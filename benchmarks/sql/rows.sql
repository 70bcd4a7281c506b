drop schema if exists bench cascade;
create schema bench;
create table bench.rows_text (
    id uuid primary key, partition_id bigint not null, transaction_id text not null,
    created_at timestamptz not null default now(), payload text not null
);
create table bench.rows_jsonb (
    id uuid primary key, partition_id bigint not null, transaction_id text not null,
    created_at timestamptz not null default now(), payload jsonb not null
);
