-- Numbers of queues and groups, and the count of a cursor's batches, become bigint: as integer they end at 2,147,483,647, and every
-- ack of a cursor that has come there fails. ALTER TYPE would rewrite tables with millions of rows under an exclusive lock.
-- So each column gets a wide twin that a trigger keeps in step, older rows are filled in batches, indexes and constraints of
-- the twins are made beside traffic, and at the end the twins take the names. The three exclusive transactions change
-- the catalog only; they lock all tables in one statement of at most half a second, below deadlock_timeout, and give way
-- otherwise. Statements of servers before this version fit both forms: integer parameters compare with bigint columns.

-- step: transaction wide columns and the triggers that fill them
set local statement_timeout = 500;
lock table queen.queues, queen.partitions, queen.partition_lookup, queen.consumer_groups_metadata, queen.partition_consumers,
    queen.queue_depth, queen.dead_letter_queue, queen.message_traces, queen.archive_holds in access exclusive mode;
set local statement_timeout = 0;
alter table queen.queues add column queue_id_wide bigint;
alter table queen.partitions add column queue_id_wide bigint;
alter table queen.partition_lookup add column queue_id_wide bigint;
alter table queen.consumer_groups_metadata add column queue_id_wide bigint, add column group_id_wide bigint;
alter table queen.partition_consumers add column queue_id_wide bigint, add column group_id_wide bigint, add column batches_wide bigint;
alter table queen.queue_depth add column queue_id_wide bigint;
alter table queen.dead_letter_queue add column queue_id_wide bigint;
alter table queen.message_traces add column queue_id_wide bigint;
alter table queen.archive_holds add column queue_id_wide bigint;
create function queen.widen_queue() returns trigger language plpgsql as $$
begin
    new.queue_id_wide := new.queue_id;
    return new;
end $$;
create function queen.widen_group() returns trigger language plpgsql as $$
begin
    new.queue_id_wide := new.queue_id;
    new.group_id_wide := new.group_id;
    return new;
end $$;
create function queen.widen_cursor() returns trigger language plpgsql as $$
begin
    new.queue_id_wide := new.queue_id;
    new.group_id_wide := new.group_id;
    new.batches_wide := new.batches;
    return new;
end $$;
-- On every update, not only of these columns: a row that traffic moves to a block already passed is filled there.
create trigger widen before insert or update on queen.queues for each row execute function queen.widen_queue();
create trigger widen before insert or update on queen.partitions for each row execute function queen.widen_queue();
create trigger widen before insert or update on queen.partition_lookup for each row execute function queen.widen_queue();
create trigger widen before insert or update on queen.consumer_groups_metadata for each row execute function queen.widen_group();
create trigger widen before insert or update on queen.partition_consumers for each row execute function queen.widen_cursor();
create trigger widen before insert or update on queen.queue_depth for each row execute function queen.widen_queue();
create trigger widen before insert or update on queen.dead_letter_queue for each row execute function queen.widen_queue();
create trigger widen before insert or update on queen.message_traces for each row execute function queen.widen_queue();
create trigger widen before insert or update on queen.archive_holds for each row execute function queen.widen_queue();

-- step: batches queen.queues
with due as materialized (
    select t.ctid as at from queen.queues t where t.ctid >= $1 and t.ctid < $2 and t.queue_id_wide is null
), free as materialized (
    select t.ctid as at from queen.queues t where t.ctid >= $1 and t.ctid < $2 and t.queue_id_wide is null
    for no key update skip locked
), filled as (
    update queen.queues t set queue_id_wide = t.queue_id from free f where t.ctid = f.at returning 1
)
select (select count(*) from due) as due, (select count(*) from filled) as filled;

-- step: batches queen.partitions
with due as materialized (
    select t.ctid as at from queen.partitions t where t.ctid >= $1 and t.ctid < $2 and t.queue_id_wide is null
), free as materialized (
    select t.ctid as at from queen.partitions t where t.ctid >= $1 and t.ctid < $2 and t.queue_id_wide is null
    for no key update skip locked
), filled as (
    update queen.partitions t set queue_id_wide = t.queue_id from free f where t.ctid = f.at returning 1
)
select (select count(*) from due) as due, (select count(*) from filled) as filled;

-- step: batches queen.partition_lookup
with due as materialized (
    select t.ctid as at from queen.partition_lookup t where t.ctid >= $1 and t.ctid < $2 and t.queue_id_wide is null
), free as materialized (
    select t.ctid as at from queen.partition_lookup t where t.ctid >= $1 and t.ctid < $2 and t.queue_id_wide is null
    for no key update skip locked
), filled as (
    update queen.partition_lookup t set queue_id_wide = t.queue_id from free f where t.ctid = f.at returning 1
)
select (select count(*) from due) as due, (select count(*) from filled) as filled;

-- step: batches queen.consumer_groups_metadata
with due as materialized (
    select t.ctid as at from queen.consumer_groups_metadata t where t.ctid >= $1 and t.ctid < $2 and t.queue_id_wide is null
), free as materialized (
    select t.ctid as at from queen.consumer_groups_metadata t where t.ctid >= $1 and t.ctid < $2 and t.queue_id_wide is null
    for no key update skip locked
), filled as (
    update queen.consumer_groups_metadata t set queue_id_wide = t.queue_id, group_id_wide = t.group_id from free f where t.ctid = f.at returning 1
)
select (select count(*) from due) as due, (select count(*) from filled) as filled;

-- step: batches queen.partition_consumers
with due as materialized (
    select t.ctid as at from queen.partition_consumers t where t.ctid >= $1 and t.ctid < $2 and t.queue_id_wide is null
), free as materialized (
    select t.ctid as at from queen.partition_consumers t where t.ctid >= $1 and t.ctid < $2 and t.queue_id_wide is null
    for no key update skip locked
), filled as (
    update queen.partition_consumers t set queue_id_wide = t.queue_id, group_id_wide = t.group_id, batches_wide = t.batches from free f where t.ctid = f.at returning 1
)
select (select count(*) from due) as due, (select count(*) from filled) as filled;

-- step: batches queen.queue_depth
with due as materialized (
    select t.ctid as at from queen.queue_depth t where t.ctid >= $1 and t.ctid < $2 and t.queue_id_wide is null
), free as materialized (
    select t.ctid as at from queen.queue_depth t where t.ctid >= $1 and t.ctid < $2 and t.queue_id_wide is null
    for no key update skip locked
), filled as (
    update queen.queue_depth t set queue_id_wide = t.queue_id from free f where t.ctid = f.at returning 1
)
select (select count(*) from due) as due, (select count(*) from filled) as filled;

-- step: batches queen.dead_letter_queue
with due as materialized (
    select t.ctid as at from queen.dead_letter_queue t where t.ctid >= $1 and t.ctid < $2 and t.queue_id_wide is null
), free as materialized (
    select t.ctid as at from queen.dead_letter_queue t where t.ctid >= $1 and t.ctid < $2 and t.queue_id_wide is null
    for no key update skip locked
), filled as (
    update queen.dead_letter_queue t set queue_id_wide = t.queue_id from free f where t.ctid = f.at returning 1
)
select (select count(*) from due) as due, (select count(*) from filled) as filled;

-- step: batches queen.message_traces
with due as materialized (
    select t.ctid as at from queen.message_traces t where t.ctid >= $1 and t.ctid < $2 and t.queue_id_wide is null
), free as materialized (
    select t.ctid as at from queen.message_traces t where t.ctid >= $1 and t.ctid < $2 and t.queue_id_wide is null
    for no key update skip locked
), filled as (
    update queen.message_traces t set queue_id_wide = t.queue_id from free f where t.ctid = f.at returning 1
)
select (select count(*) from due) as due, (select count(*) from filled) as filled;

-- step: batches queen.archive_holds
with due as materialized (
    select t.ctid as at from queen.archive_holds t where t.ctid >= $1 and t.ctid < $2 and t.queue_id_wide is null
), free as materialized (
    select t.ctid as at from queen.archive_holds t where t.ctid >= $1 and t.ctid < $2 and t.queue_id_wide is null
    for no key update skip locked
), filled as (
    update queen.archive_holds t set queue_id_wide = t.queue_id from free f where t.ctid = f.at returning 1
)
select (select count(*) from due) as due, (select count(*) from filled) as filled;

-- step: index queen.queues_wide
create unique index concurrently queues_wide on queen.queues (queue_id_wide);

-- step: index queen.partitions_wide
create unique index concurrently partitions_wide on queen.partitions (queue_id_wide, name);

-- step: index queen.partition_lookup_wide
create index concurrently partition_lookup_wide on queen.partition_lookup (queue_id_wide, partition_id);

-- step: index queen.consumer_groups_metadata_wide
create unique index concurrently consumer_groups_metadata_wide on queen.consumer_groups_metadata (group_id_wide);

-- step: index queen.consumer_groups_metadata_queue_wide
create unique index concurrently consumer_groups_metadata_queue_wide on queen.consumer_groups_metadata (queue_id_wide, name);

-- step: index queen.partition_consumers_wide
create unique index concurrently partition_consumers_wide on queen.partition_consumers (partition_id, group_id_wide);

-- step: index queen.partition_consumers_ready_wide
create index concurrently partition_consumers_ready_wide on queen.partition_consumers (group_id_wide, ready_at) where ready_at is not null;

-- step: index queen.queue_depth_wide
create unique index concurrently queue_depth_wide on queen.queue_depth (queue_id_wide);

-- step: index queen.dead_letter_queue_wide
create index concurrently dead_letter_queue_wide on queen.dead_letter_queue (queue_id_wide, failed_at desc);

-- step: index queen.message_traces_wide
create index concurrently message_traces_wide on queen.message_traces (queue_id_wide);

-- step: index queen.archive_holds_wide
create unique index concurrently archive_holds_wide on queen.archive_holds (queue_id_wide, holder);

-- step: transaction constraints, not validated yet
set local statement_timeout = 500;
lock table queen.queues, queen.partitions, queen.partition_lookup, queen.consumer_groups_metadata, queen.partition_consumers,
    queen.queue_depth, queen.dead_letter_queue, queen.message_traces, queen.archive_holds in access exclusive mode;
set local statement_timeout = 0;
alter table queen.queues add constraint queues_wide_set check (queue_id_wide is not null) not valid;
alter table queen.partitions add constraint partitions_wide_set check (queue_id_wide is not null) not valid;
alter table queen.partition_lookup add constraint partition_lookup_wide_set check (queue_id_wide is not null) not valid;
alter table queen.consumer_groups_metadata add constraint consumer_groups_metadata_wide_set check (queue_id_wide is not null and group_id_wide is not null) not valid;
alter table queen.partition_consumers add constraint partition_consumers_wide_set check (queue_id_wide is not null and group_id_wide is not null and batches_wide is not null) not valid;
alter table queen.queue_depth add constraint queue_depth_wide_set check (queue_id_wide is not null) not valid;
alter table queen.dead_letter_queue add constraint dead_letter_queue_wide_set check (queue_id_wide is not null) not valid;
alter table queen.message_traces add constraint message_traces_wide_set check (queue_id_wide is not null) not valid;
alter table queen.archive_holds add constraint archive_holds_wide_set check (queue_id_wide is not null) not valid;
alter table queen.partitions add constraint partitions_wide_fkey foreign key (queue_id_wide) references queen.queues (queue_id_wide) not valid;
alter table queen.consumer_groups_metadata add constraint consumer_groups_metadata_wide_fkey foreign key (queue_id_wide) references queen.queues (queue_id_wide) not valid;
alter table queen.queue_depth add constraint queue_depth_wide_fkey foreign key (queue_id_wide) references queen.queues (queue_id_wide) on delete cascade not valid;
alter table queen.message_traces add constraint message_traces_wide_fkey foreign key (queue_id_wide) references queen.queues (queue_id_wide) not valid;
alter table queen.archive_holds add constraint archive_holds_wide_fkey foreign key (queue_id_wide) references queen.queues (queue_id_wide) on delete cascade not valid;

-- step: transaction validation of queen.queues
alter table queen.queues validate constraint queues_wide_set;

-- step: transaction validation of queen.partitions
alter table queen.partitions validate constraint partitions_wide_set, validate constraint partitions_wide_fkey;

-- step: transaction validation of queen.partition_lookup
alter table queen.partition_lookup validate constraint partition_lookup_wide_set;

-- step: transaction validation of queen.consumer_groups_metadata
alter table queen.consumer_groups_metadata validate constraint consumer_groups_metadata_wide_set, validate constraint consumer_groups_metadata_wide_fkey;

-- step: transaction validation of queen.partition_consumers
alter table queen.partition_consumers validate constraint partition_consumers_wide_set;

-- step: transaction validation of queen.queue_depth
alter table queen.queue_depth validate constraint queue_depth_wide_set, validate constraint queue_depth_wide_fkey;

-- step: transaction validation of queen.dead_letter_queue
alter table queen.dead_letter_queue validate constraint dead_letter_queue_wide_set;

-- step: transaction validation of queen.message_traces
alter table queen.message_traces validate constraint message_traces_wide_set, validate constraint message_traces_wide_fkey;

-- step: transaction validation of queen.archive_holds
alter table queen.archive_holds validate constraint archive_holds_wide_set, validate constraint archive_holds_wide_fkey;

-- step: alone statistics of the wide columns
analyze queen.queues (queue_id_wide),
    queen.partitions (queue_id_wide),
    queen.partition_lookup (queue_id_wide),
    queen.consumer_groups_metadata (queue_id_wide, group_id_wide),
    queen.partition_consumers (queue_id_wide, group_id_wide, batches_wide),
    queen.queue_depth (queue_id_wide),
    queen.dead_letter_queue (queue_id_wide),
    queen.message_traces (queue_id_wide),
    queen.archive_holds (queue_id_wide);

-- step: transaction the wide columns take the names
set local statement_timeout = 500;
lock table queen.queues, queen.partitions, queen.partition_lookup, queen.consumer_groups_metadata, queen.partition_consumers,
    queen.queue_depth, queen.dead_letter_queue, queen.message_traces, queen.archive_holds in access exclusive mode;
set local statement_timeout = 0;
-- Views are reduced to their columns for the moment and get their text back afterwards: they keep their privileges and triggers.
create table queen.kept_views as
    select c.oid::regclass::text as name, pg_get_viewdef(c.oid) as body,
           coalesce('with (' || array_to_string(c.reloptions, ', ') || ')', '') as options,
           (select string_agg(format('null::%s%s as %I', format_type(a.atttypid, a.atttypmod),
                                     ' collate ' || nullif(a.attcollation, 0)::regcollation, a.attname), ', ' order by a.attnum)
            from pg_attribute a where a.attrelid = c.oid and a.attnum > 0) as columns
    from pg_class c where c.relnamespace = 'queen'::regnamespace and c.relkind = 'v';
create table queen.kept_privileges as
    select format('grant %s (%I) on %s to %s%s', x.privilege_type, a.attname, a.attrelid::regclass,
                  case when x.grantee = 0 then 'public' else x.grantee::regrole::text end,
                  case when x.is_grantable then ' with grant option' else '' end) as statement
    from pg_class c join pg_attribute a on a.attrelid = c.oid and a.attname in ('queue_id', 'group_id', 'batches')
    cross join lateral aclexplode(a.attacl) x where c.relnamespace = 'queen'::regnamespace and c.relkind = 'r';
create table queen.last_numbers as
    select 'queues' as of_table, 'queue_id' as of_column, last_value from queen.queues_queue_id_seq
    union all select 'consumer_groups_metadata', 'group_id', last_value from queen.consumer_groups_metadata_group_id_seq;
do $$
declare
    v record;
begin
    for v in select * from queen.kept_views loop
        execute format('create or replace view %s as select %s', v.name, v.columns);
    end loop;
end $$;
drop trigger widen on queen.queues;
drop trigger widen on queen.partitions;
drop trigger widen on queen.partition_lookup;
drop trigger widen on queen.consumer_groups_metadata;
drop trigger widen on queen.partition_consumers;
drop trigger widen on queen.queue_depth;
drop trigger widen on queen.dead_letter_queue;
drop trigger widen on queen.message_traces;
drop trigger widen on queen.archive_holds;
drop function queen.widen_queue(), queen.widen_group(), queen.widen_cursor();
alter table queen.queues alter queue_id_wide set not null;
alter table queen.queues drop constraint queues_wide_set;
alter table queen.partitions alter queue_id_wide set not null;
alter table queen.partitions drop constraint partitions_wide_set;
alter table queen.partition_lookup alter queue_id_wide set not null;
alter table queen.partition_lookup drop constraint partition_lookup_wide_set;
alter table queen.consumer_groups_metadata alter queue_id_wide set not null, alter group_id_wide set not null;
alter table queen.consumer_groups_metadata drop constraint consumer_groups_metadata_wide_set;
alter table queen.partition_consumers alter queue_id_wide set not null, alter group_id_wide set not null, alter batches_wide set not null;
alter table queen.partition_consumers drop constraint partition_consumers_wide_set;
alter table queen.queue_depth alter queue_id_wide set not null;
alter table queen.queue_depth drop constraint queue_depth_wide_set;
alter table queen.dead_letter_queue alter queue_id_wide set not null;
alter table queen.dead_letter_queue drop constraint dead_letter_queue_wide_set;
alter table queen.message_traces alter queue_id_wide set not null;
alter table queen.message_traces drop constraint message_traces_wide_set;
alter table queen.archive_holds alter queue_id_wide set not null;
alter table queen.archive_holds drop constraint archive_holds_wide_set;
-- With a column go the indexes and constraints that it stands in, on queues last.
alter table queen.partitions drop column queue_id;
alter table queen.partition_lookup drop column queue_id;
alter table queen.consumer_groups_metadata drop column queue_id, drop column group_id;
alter table queen.partition_consumers drop column queue_id, drop column group_id, drop column batches;
alter table queen.queue_depth drop column queue_id;
alter table queen.dead_letter_queue drop column queue_id;
alter table queen.message_traces drop column queue_id;
alter table queen.archive_holds drop column queue_id;
alter table queen.queues drop column queue_id;
alter table queen.queues rename queue_id_wide to queue_id;
alter table queen.partitions rename queue_id_wide to queue_id;
alter table queen.partition_lookup rename queue_id_wide to queue_id;
alter table queen.consumer_groups_metadata rename queue_id_wide to queue_id;
alter table queen.consumer_groups_metadata rename group_id_wide to group_id;
alter table queen.partition_consumers rename queue_id_wide to queue_id;
alter table queen.partition_consumers rename group_id_wide to group_id;
alter table queen.partition_consumers rename batches_wide to batches;
alter table queen.queue_depth rename queue_id_wide to queue_id;
alter table queen.dead_letter_queue rename queue_id_wide to queue_id;
alter table queen.message_traces rename queue_id_wide to queue_id;
alter table queen.archive_holds rename queue_id_wide to queue_id;
alter table queen.partition_consumers alter batches set default 0;
alter table queen.partitions rename constraint partitions_wide_fkey to partitions_queue_id_fkey;
alter table queen.consumer_groups_metadata rename constraint consumer_groups_metadata_wide_fkey to consumer_groups_metadata_queue_id_fkey;
alter table queen.queue_depth rename constraint queue_depth_wide_fkey to queue_depth_queue_id_fkey;
alter table queen.message_traces rename constraint message_traces_wide_fkey to message_traces_queue_id_fkey;
alter table queen.archive_holds rename constraint archive_holds_wide_fkey to archive_holds_queue_id_fkey;
alter table queen.queues add constraint queues_pkey primary key using index queues_wide;
alter table queen.partition_consumers add constraint partition_consumers_pkey primary key using index partition_consumers_wide;
alter table queen.queue_depth add constraint queue_depth_pkey primary key using index queue_depth_wide;
alter table queen.archive_holds add constraint archive_holds_pkey primary key using index archive_holds_wide;
alter table queen.consumer_groups_metadata add constraint consumer_groups_metadata_pkey primary key using index consumer_groups_metadata_wide;
alter table queen.partitions add constraint partitions_queue_id_name_key unique using index partitions_wide;
alter table queen.consumer_groups_metadata add constraint consumer_groups_metadata_queue_id_name_key
    unique using index consumer_groups_metadata_queue_wide;
alter index queen.partition_lookup_wide rename to partition_lookup_queue;
alter index queen.partition_consumers_ready_wide rename to partition_consumers_ready;
alter index queen.dead_letter_queue_wide rename to dead_letter_queue_failed;
alter index queen.message_traces_wide rename to message_traces_queue;
do $$
declare
    n record;
    p record;
    v record;
    f record;
begin
    for n in select * from queen.last_numbers loop
        execute format('alter table queen.%1$I alter %2$I add generated always as identity (sequence name queen.%3$I start with %4$s)',
                       n.of_table, n.of_column, n.of_table || '_' || n.of_column || '_seq', n.last_value + 1);
    end loop;
    for v in select * from queen.kept_views loop
        execute format('create or replace view %s %s as %s', v.name, v.options, v.body);
    end loop;
    for p in select * from queen.kept_privileges loop
        execute p.statement;
    end loop;
    -- Sessions keep plans of functions with the types that fields of rows had: a changed entry makes them compile anew.
    for f in select oid::regprocedure as name, procost from pg_proc where pronamespace = 'queen'::regnamespace and prokind = 'f' loop
        execute format('alter function %s cost %s', f.name, f.procost);
    end loop;
end $$;
drop table queen.kept_views, queen.kept_privileges, queen.last_numbers;
