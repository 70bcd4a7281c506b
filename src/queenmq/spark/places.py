"""Where a lake or a checkpoint lies: a path, or a URI that says a place and nothing else.

Places are shown: in the state of a run, in manifests, in errors. So what may be secret is refused before it gets there.
"""

from __future__ import annotations

import re
from typing import Final

from .errors import OptionError

URI: Final = re.compile("([a-z][a-z0-9+.-]+):(//[^/]*)?/?", re.IGNORECASE)
_ALLOWED: Final = (
    "a path, or a URI such as s3://bucket/lake with nothing but a place in it; credentials and endpoint come from the "
    "environment (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_ENDPOINT_URL)"
)


def check_place(option: str, text: str) -> None:
    """Raises OptionError, without what was given, for a URI with a login or a query."""
    found = URI.match(text)
    if found is None or found[1].lower() == "file":
        return
    scheme, host = found[1].lower(), found[2] or ""
    # Only HDFS has ports. Elsewhere a colon is that of a login, also of one with a slash in it.
    if not host or "?" in text or (":" in host and (scheme != "hdfs" or "@" in host)):
        raise OptionError(option, f"{scheme}:…", _ALLOWED)
