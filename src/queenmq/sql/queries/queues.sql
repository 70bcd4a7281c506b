-- name: configure
select * from queen.configure_v2($1, $2, $3, $4);

-- name: find_queue
select * from queen.queues where name = $1;

-- name: list_queues
select * from queen.queues order by created_at desc, queue_id desc;

-- name: delete_queue
select queen.delete_queue_v1($1);
