select coalesce(sum(s.calls), 0)::bigint from pg_stat_statements(false) s join pg_database d on d.oid = s.dbid
where d.datname = $1 and s.toplevel
