-- name: pipeline_states
-- What every pipeline last said of itself, and how long ago by the clock of the database.
select substr(key, 10) as id, value, extract(epoch from clock_timestamp() - updated_at)::float8 as age
from queen.system_state
where key like 'pipeline:%'
order by key;

-- name: claim_pipeline
-- Begin a run under a key, unless one is alive under it: it says it runs, has said so within $3 seconds, and is not run $4.
insert into queen.system_state as s (key, value) values ($1, $2)
on conflict (key) do update set value = excluded.value, updated_at = clock_timestamp()
    where coalesce(s.value ->> 'state', '') not in ('running', 'stopping')
       or s.updated_at < clock_timestamp() - make_interval(secs => $3) or s.value ->> 'run' = $4
returning true;

-- name: tell_pipeline
-- What run $2 says of itself. Returns its state, in which a wish to stop it survives; nothing when the key is another's.
update queen.system_state set updated_at = clock_timestamp(),
    value = case when value ->> 'state' = 'stopping' and $3::jsonb ->> 'state' = 'running'
                 then $3::jsonb || '{"state": "stopping"}' else $3::jsonb end
where key = $1 and value ->> 'run' = $2
returning value ->> 'state';

-- name: stop_pipeline
-- The time stays as it is: it says when the runner was last heard of.
update queen.system_state set value = value || '{"state": "stopping"}'
where key = $1 and value ->> 'state' in ('running', 'stopping')
returning true;
