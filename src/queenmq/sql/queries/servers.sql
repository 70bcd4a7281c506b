-- name: begin_session
select session, now_ms from queen.begin_session_v1($1);

-- name: server_sessions
select server_id, session from queen.servers;

-- name: database_clock
select (extract(epoch from clock_timestamp()) * 1000)::bigint;
