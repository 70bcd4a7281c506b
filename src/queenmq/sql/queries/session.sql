-- name: session_state
-- What this session is: its process, whether PgBouncer keeps track of prepared statements (it gives them names of its
-- own; this statement is one), the values of the settings named, and what is stored with the role for this database.
select pg_backend_pid() as pid,
       exists (select from pg_prepared_statements where name like 'PGBOUNCER\_%') as tracked,
       array(select current_setting(s.name) from unnest($1::text[]) with ordinality s (name, place) order by s.place) as values,
       (select d.setconfig from pg_db_role_setting d
        join pg_roles r on r.oid = d.setrole and r.rolname = current_user
        join pg_database b on b.oid = d.setdatabase and b.datname = current_database()) as stored;

-- name: store_setting
-- The statement that makes a setting a default of this role in this database.
select format('alter role %I in database %I set %I to %L', current_user, current_database(), $1::text, $2::text);

-- name: database_time
select clock_timestamp();

-- name: retire_sessions
-- End the sessions of this role that began before a moment, come from where this one comes from and have not been used
-- for a second: PgBouncer holds them and is not about to give them to anybody. Says how many there were, used or not.
select count(case when s.state = 'idle' and s.state_change < clock_timestamp() - interval '1 second'
             then pg_terminate_backend(s.pid) else false end)
from pg_stat_activity s, pg_stat_activity own
where own.pid = pg_backend_pid() and s.pid <> own.pid and s.usename = current_user and s.datname = current_database()
  and s.backend_type = 'client backend' and s.client_addr is not distinct from own.client_addr and s.backend_start < $1;

-- name: end_own_session
-- Behind PgBouncer nobody else can be using it while this runs.
select pg_terminate_backend(pg_backend_pid());
