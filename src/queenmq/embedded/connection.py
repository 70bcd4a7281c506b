"""How to reach a running embedded PostgreSQL.

Clients of this product always use the private Unix socket, which needs no password because only the server's own user
(and root) can enter its directory. Where TCP was asked for, `tcp_dsn` is there for other programs, with the password.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from urllib.parse import quote, urlencode

USER = "queen"
DATABASE = "queen"


@dataclass(frozen=True, slots=True)
class ConnectionInfo:
    host: str
    """The directory of the Unix socket."""
    port: int
    postmaster_pid: int
    attached: bool
    """True when another manager started the server and will stop it."""
    user: str = USER
    database: str = DATABASE
    tcp_port: int | None = None
    password: str | None = field(default=None, repr=False)

    @property
    def dsn(self) -> str:
        query = urlencode({"host": self.host, "port": self.port}, quote_via=quote)
        return f"postgresql://{quote(self.user)}@/{quote(self.database)}?{query}"

    @property
    def tcp_dsn(self) -> str | None:
        """For programs that cannot use a Unix socket; contains the password, so it must not be logged."""
        if self.tcp_port is None or self.password is None:
            return None
        login = f"{quote(self.user)}:{quote(self.password, safe='')}"
        return f"postgresql://{login}@127.0.0.1:{self.tcp_port}/{quote(self.database)}"
