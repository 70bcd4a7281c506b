update queen.segments s set created_at = s.created_at - interval '1 hour'
from queen.partitions p join queen.queues q using (queue_id) where p.partition_id = s.partition_id and q.name = 'expired'
