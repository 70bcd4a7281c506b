"""Payload encryption: round trips, the stored form, and every way in which it can be wrong."""

from __future__ import annotations

import base64
import json
import os

import pytest
from cryptography.hazmat.primitives.ciphers import Cipher as Primitive
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import GCM
from hypothesis import given
from hypothesis import strategies as st

from queenmq.domain.cipher import Cipher, EncryptionUnavailable, Unreadable
from queenmq.domain.segments import SEPARATOR

KEY = bytes(range(32))
IV = bytes(range(100, 116))
PLAIN = b'{"order":42,"text":"caf\xc3\xa9"}'
# From the primitives, not from the class under test; see `independently`.
GOLDEN = (
    b'{"encrypted":"o5EsI4BxVfqIzZ+lZaOJHS5TYuL/jobIbKJp",'
    b'"iv":"ZGVmZ2hpamtsbW5vcHFycw==","authTag":"QSF5IF5HnSW18iSIVqvv0w=="}'
)


def independently(key: bytes, iv: bytes, payload: bytes) -> dict[str, str]:
    """The stored form by another way: the GCM mode itself instead of the one-step interface."""
    encryptor = Primitive(AES(key), GCM(iv)).encryptor()
    text = encryptor.update(payload) + encryptor.finalize()
    parts = {"encrypted": text, "iv": iv, "authTag": encryptor.tag}
    return {name: base64.b64encode(part).decode() for name, part in parts.items()}


def parts_of(stored: bytes) -> dict[str, bytes]:
    return {name: base64.b64decode(part, validate=True) for name, part in json.loads(stored).items()}


def stored_as(parts: dict[str, bytes]) -> bytes:
    return json.dumps({name: base64.b64encode(part).decode() for name, part in parts.items()}).encode()


def test_the_golden_vector() -> None:
    assert json.loads(GOLDEN) == independently(KEY, IV, PLAIN)
    assert Cipher(KEY).decrypt(GOLDEN) == PLAIN


def test_the_stored_form() -> None:
    stored = Cipher(KEY).encrypt(PLAIN)
    parts = parts_of(stored)
    assert list(parts) == ["encrypted", "iv", "authTag"]
    assert [len(part) for part in parts.values()] == [len(PLAIN), 16, 16]
    assert json.loads(stored) == independently(KEY, parts["iv"], PLAIN)
    assert SEPARATOR not in stored


def test_other_spellings_of_the_stored_form_are_read() -> None:
    """jsonb puts spaces in and orders the names its own way."""
    parts = independently(KEY, IV, PLAIN)
    text = json.dumps({name: parts[name] for name in ("iv", "authTag", "encrypted")}, indent=1)
    assert Cipher(KEY).decrypt(text.encode()) == PLAIN


@given(st.binary(max_size=2000))
def test_what_was_encrypted_comes_back(payload: bytes) -> None:
    stored = Cipher(KEY).encrypt(payload)
    assert Cipher(KEY).decrypt(stored) == payload
    assert len(payload) < 8 or payload not in stored


@given(st.lists(st.binary(max_size=200), max_size=20))
def test_many_at_once(payloads: list[bytes]) -> None:
    cipher = Cipher(KEY)
    stored = cipher.seal(payloads)
    assert cipher.open(stored) == payloads
    assert [cipher.decrypt(each) for each in stored] == payloads
    assert len({parts_of(each)["iv"] for each in stored}) == len(payloads)


def test_every_message_has_its_own_iv() -> None:
    cipher = Cipher(KEY)
    stored = [cipher.encrypt(PLAIN) for _ in range(500)] + cipher.seal([PLAIN] * 500)
    assert len({parts_of(each)["iv"] for each in stored}) == 1000
    assert len({parts_of(each)["encrypted"] for each in stored}) == 1000


@pytest.mark.parametrize("name", ["encrypted", "iv", "authTag"])
def test_every_changed_bit_is_refused(name: str) -> None:
    cipher = Cipher(KEY)
    parts = parts_of(cipher.encrypt(PLAIN))
    for bit in range(len(parts[name]) * 8):
        changed = bytearray(parts[name])
        changed[bit // 8] ^= 1 << bit % 8
        with pytest.raises(Unreadable):
            cipher.decrypt(stored_as(parts | {name: bytes(changed)}))


@given(position=st.integers(0, 10_000), byte=st.integers(0, 255))
def test_a_changed_byte_of_the_stored_text_never_gives_another_payload(position: int, byte: int) -> None:
    """Base64 has a few unused bits; a change of those alone still means the same bytes."""
    changed = bytearray(GOLDEN)
    changed[position % len(changed)] = byte
    [opened] = Cipher(KEY).open([bytes(changed)])
    try:
        same = parts_of(bytes(changed)) == parts_of(GOLDEN)
    except ValueError:
        same = False
    assert opened == (PLAIN if same else None)


@pytest.mark.parametrize(
    "changes",
    [
        {"authTag": b""},
        {"authTag": b"x" * 12},
        {"iv": b""},
        {"iv": b"x" * 12},
        {"encrypted": b""},
        {"encrypted": b"x" * 100},
    ],
)
def test_parts_of_another_length_are_refused(changes: dict[str, bytes]) -> None:
    cipher = Cipher(KEY)
    with pytest.raises(Unreadable):
        cipher.decrypt(stored_as(parts_of(cipher.encrypt(PLAIN)) | changes))


def test_bytes_cannot_move_between_text_and_tag() -> None:
    cipher = Cipher(KEY)
    parts = parts_of(cipher.encrypt(PLAIN))
    whole = parts["encrypted"] + parts["authTag"]
    for cut in (len(whole), len(whole) - 15, len(whole) - 17, 0):
        with pytest.raises(Unreadable):
            cipher.decrypt(stored_as(parts | {"encrypted": whole[:cut], "authTag": whole[cut:]}))


@pytest.mark.parametrize(
    "stored",
    [b"", b"null", b"7", b"[]", b"{}", PLAIN, b'{"encrypted":1,"iv":2,"authTag":3}', b"\xff", b"[" * 100_000],
)
def test_what_is_no_stored_form_is_refused(stored: bytes) -> None:
    with pytest.raises(Unreadable) as refused:
        Cipher(KEY).decrypt(stored)
    assert refused.value.code == "payload_unreadable"


def test_another_key_reads_nothing_and_says_nothing() -> None:
    stored = Cipher(KEY).encrypt(PLAIN)
    with pytest.raises(Unreadable) as refused:
        Cipher(os.urandom(32)).decrypt(stored)
    assert "order" not in str(refused.value)
    assert refused.value.__cause__ is None


def test_one_unreadable_payload_does_not_take_the_others_with_it() -> None:
    cipher = Cipher(KEY)
    stored = [cipher.encrypt(b"1"), Cipher(os.urandom(32)).encrypt(b"2"), b"nonsense", cipher.encrypt(b"4")]
    assert cipher.open(stored) == [b"1", None, None, b"4"]


@pytest.mark.parametrize("length", [0, 16, 31, 33])
def test_a_key_has_32_bytes(length: int) -> None:
    with pytest.raises(ValueError, match="32 bytes"):
        Cipher(b"k" * length)


def test_a_missing_key_names_the_queue() -> None:
    error = EncryptionUnavailable("orders")
    assert (error.code, error.queue) == ("encryption_unavailable", "orders")
    assert "orders" in error.message
    assert "QUEEN_ENCRYPTION_KEY" in error.message
