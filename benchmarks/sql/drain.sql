update queen.partition_consumers c set acked_seq = l.last_seq, ready_at = null, lease_id = null, lease_to = null, lease_expires_at = null
from queen.partition_lookup l where l.partition_id = c.partition_id and c.group_id = $1
