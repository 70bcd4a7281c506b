"""The rules for a request's head by themselves, because a parser may be more lenient than ours is today."""

from __future__ import annotations

import pytest

from queenmq.http.limits import Limits
from queenmq.http.refusals import Refused
from queenmq.http.request import Request

HOST = (b"host", b"queen")
CHUNKED = (b"transfer-encoding", b"chunked")


def checked(*headers: tuple[bytes, bytes], version: str = "1.1") -> Request:
    request = Request()
    request.method, request.url, request.version, request.keep_alive = b"POST", b"/", version, True
    request.headers = list(headers)
    request.check_head(Limits(max_body_bytes=100))
    return request


@pytest.mark.parametrize(
    ("status", "headers"),
    [
        (400, [HOST, (b"content-length", b"1"), CHUNKED]),
        (400, [HOST, CHUNKED, (b"content-length", b"1")]),
        (400, [HOST, (b"content-length", b"1"), (b"content-length", b"1")]),
        (400, [HOST, CHUNKED, CHUNKED]),
        (400, [HOST, (b"transfer-encoding", b"gzip, chunked")]),
        (400, [HOST, (b"transfer-encoding", b"identity")]),
        (400, [HOST, (b"transfer-encoding", b"")]),
        (400, [HOST, HOST]),
        (400, [CHUNKED]),
        *[(400, [HOST, (b"content-length", length)]) for length in (b"", b"-1", b"+1", b"1,1", b"0x1", b"1_0", b"1.0")],
        (400, [HOST, (b"content-length", "²".encode("latin-1"))]),
        (400, [HOST, (b"content-length", b"9" * 5_000)]),
        (413, [HOST, (b"content-length", b"101")]),
        (415, [HOST, (b"content-encoding", b"br")]),
        (417, [HOST, (b"expect", b"nothing")]),
        (431, [HOST, *[(b"x", b"y")] * 256]),
    ],
)
def test_broken_rules(status: int, headers: list[tuple[bytes, bytes]]) -> None:
    with pytest.raises(Refused) as refused:
        checked(*headers)
    assert refused.value.answer.status == status


@pytest.mark.parametrize("version", ["0.9", "1.2", "2.0"])
def test_other_versions(version: str) -> None:
    with pytest.raises(Refused):
        checked(HOST, version=version)


def test_http_1_0() -> None:
    assert not checked(version="1.0").keep_alive
    with pytest.raises(Refused):
        checked(CHUNKED, version="1.0")


def test_good_heads() -> None:
    assert checked(HOST).length == 0
    assert checked(HOST, (b"content-length", b" 0100 ")).length == 100
    assert checked(HOST, (b"transfer-encoding", b"Chunked ")).length is None
    assert checked(HOST, (b"authorization", b"Bearer x")).authorization == b"Bearer x"
    assert checked(HOST, CHUNKED, (b"expect", b"100-Continue")).expects_continue
    assert not checked(HOST, (b"expect", b"100-continue")).expects_continue
    assert not checked((b"content-length", b"1"), (b"expect", b"100-continue"), version="1.0").expects_continue
