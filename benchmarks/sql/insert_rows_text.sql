insert into bench.rows_text (id, partition_id, transaction_id, payload)
select * from unnest($1::uuid[], $2::bigint[], $3::text[], $4::text[])
