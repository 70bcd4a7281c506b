"""The URL of a database may say what libpq understands: it reaches whom it is for, and nothing gets in the way."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queenmq.storage.errors import AccessRefused, DatabaseUnavailable
from queenmq.storage.pool import connect, connect_unchecked, create_pool
from queenmq.storage.url import KNOWN, for_driver, without_password
from tests.conftest import Server

LEFT_OUT = [
    *("connect_timeout=10", "keepalives=1", "keepalives_idle=30", "keepalives_interval=10", "keepalives_count=3"),
    *("tcp_user_timeout=10", "load_balance_hosts=random", "channel_binding=require", "gssencmode=disable"),
    *("sslcompression=0", "sslsni=1", "max_protocol_version=3.2", "client_encoding=latin1", "client_encoding=auto"),
    *("fallback_application_name=shop", "connect%5Ftimeout=10", "connect_timeout=", "&&"),
]


def test_the_parameters_are_documented() -> None:
    documented = (Path(__file__).parents[2] / "docs" / "server.md").read_text()
    assert [name for name in KNOWN if f"`{name}`" not in documented] == []


def saying(dsn: str, parameters: str) -> str:
    return f"{dsn}{'&' if '?' in dsn else '?'}{parameters}"


@pytest.mark.parametrize("parameter", LEFT_OUT)
async def test_what_is_for_libpq_alone_is_left_out(embedded_server: Server, parameter: str) -> None:
    connection = await connect(saying(embedded_server.dsn, parameter))
    assert await connection.fetchval("show client_encoding") == "UTF8"
    await connection.close()


async def test_everybody_who_connects_leaves_it_out(embedded_server: Server) -> None:
    dsn = saying(embedded_server.dsn, "&".join(LEFT_OUT))
    connection = await connect_unchecked(dsn)
    await connection.close()
    async with await create_pool(dsn, size=1) as pool:
        assert await pool.fetchval("select 1") == 1


async def test_options_reach_postgresql_and_ours_win(embedded_server: Server) -> None:
    options = "options=-c%20work_mem%3D5MB%20-c%20jit%3Don&application_name=shop&target_session_attrs=primary"
    connection = await connect(saying(embedded_server.dsn, options))
    shown = [await connection.fetchval(f"show {name}") for name in ("work_mem", "jit", "application_name")]
    assert shown == ["5MB", "off", "queenmq"]
    await connection.close()


@pytest.mark.parametrize("options", ["-c%20nope%3D1", "-c%20work_mem%3Dx", "-c%20max_connections%3D1", "-x"])
async def test_options_that_postgresql_refuses(embedded_server: Server, options: str) -> None:
    for connecting in (connect, connect_unchecked):
        with pytest.raises(AccessRefused):
            await connecting(saying(embedded_server.dsn, f"options={options}"))


@pytest.mark.parametrize("place", [f"{'x' * 70}/d", "a..b/d", "/d?host=h:x"])
async def test_an_address_that_is_none(place: str) -> None:
    for connecting in (connect, connect_unchecked):
        with pytest.raises(DatabaseUnavailable, match=r"^the URL cannot be read$") as caught:
            await connecting(f"postgresql://u@{place}")
        assert isinstance(caught.value.__cause__, ValueError)


async def test_ssl_as_jdbc_says_it_is_required(embedded_server: Server) -> None:
    host = "postgresql://queen@127.0.0.1:1/queen"
    assert for_driver(f"{host}?ssl=true&sslcert=a+b") == f"{host}?sslmode=require&sslcert=a%2Bb"
    with pytest.raises(DatabaseUnavailable):
        await connect(f"{host}?ssl=true")


@pytest.mark.parametrize("url", ["postgresql:///d?host=/run/x&port=1", "postgresql://u@a:1,[::1]:2/d", "postgres://h"])
def test_a_url_without_such_parameters_stays_as_it_is(url: str) -> None:
    assert for_driver(url) == url
    assert without_password(url) == (url, None)


@pytest.mark.parametrize(
    ("url", "shown", "password"),
    [
        ("postgresql://u:p%40%2B+@h/d", "postgresql://u@h/d", "p@++"),
        ("postgresql://u@h/d?password=p%40%2B+", "postgresql://u@h/d", "p@++"),
        ("postgresql:///d?host=/run&password=p&port=1", "postgresql:///d?host=/run&port=1", "p"),
        ("postgresql://u@h?p%61ssword=p%26q", "postgresql://u@h", "p&q"),
        ("postgresql://u@h/d?password=p&password=q", "postgresql://u@h/d", "q"),
        ("postgresql://u:p@h/d?password=q", "postgresql://u@h/d", "p"),
        ("postgresql://u:@h/d?password=", "postgresql://u@h/d", None),
        (
            "postgresql://u@h/d?passfile=/a%20b&sslpassword=s&password=p",
            "postgresql://u@h/d?passfile=/a%20b&sslpassword=s",
            "p",
        ),
    ],
)
def test_a_password_is_taken_out_of_the_url(url: str, shown: str, password: str | None) -> None:
    assert without_password(url) == (shown, password)


@given(
    st.text(st.characters(exclude_categories=["Cs"])),
    st.sampled_from(["postgresql://u:{}@h/d", "postgresql://u@h/d?x=y&password={}"]),
)
def test_whatever_it_is(password: str, form: str) -> None:
    assert without_password(form.format(quote(password, safe="")))[1] == (password or None)
