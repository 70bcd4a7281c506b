-- Servers that share this database.

-- The database's clock in milliseconds since 1970.
create or replace function queen.clock_ms() returns bigint
language sql volatile parallel safe as $$
    select floor(extract(epoch from clock_timestamp()) * 1000)::bigint
$$;

-- Begin a session of a server. Sessions of a server only rise, also when the clock is set back: what one of its earlier sessions
-- has said can be told from what it says in this one. now_ms: the clock that all servers share. Servers that have not
-- started for a year are forgotten; skip locked, because two of those may be starting just now.
create or replace function queen.begin_session_v1(server text) returns table (session bigint, now_ms bigint)
language plpgsql as $$
#variable_conflict use_column
begin
    insert into queen.servers as s (server_id, session) values (server, queen.clock_ms())
        on conflict (server_id) do update set session = greatest(s.session + 1, excluded.session), started_at = clock_timestamp()
        returning s.session into session;
    delete from queen.servers s where s.server_id in (
        select o.server_id from queen.servers o where o.started_at < clock_timestamp() - interval '1 year' for update skip locked);
    now_ms := queen.clock_ms();
    return next;
end $$;
