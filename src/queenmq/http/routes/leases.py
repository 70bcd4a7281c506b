"""Hold a lease longer."""

from __future__ import annotations

import msgspec

from ...domain.ids import is_uuid
from ..answer import Answer
from ..parse.operations import parse_lease
from .context import Call, Context
from .times import milliseconds


async def extend(context: Context, call: Call) -> Answer:
    """One object with every name under which clients look for the time."""
    seconds = parse_lease(await call.body())
    lease = call.param("leaseId")
    renewal = await context.broker.renew(lease if is_uuid(lease) else "", seconds)
    expires = None if renewal.expires_at is None else milliseconds(renewal.expires_at)
    result = {
        "index": 0,
        "leaseId": lease,
        "success": renewal.error is None,
        "renewed": renewal.renewed,
        "error": renewal.error,
        "expiresAt": expires,
        "newExpiresAt": expires,
        "lease_expires_at": expires,
    }
    return Answer(200, msgspec.json.encode(result))
