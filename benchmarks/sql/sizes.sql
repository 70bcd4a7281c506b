select t.name, pg_total_relation_size('queen.' || t.name) as bytes from unnest($1::text[]) t (name)
