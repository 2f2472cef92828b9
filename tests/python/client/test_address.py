"""Where a server is, from what people write."""

from __future__ import annotations

import pytest

from fastpaged.client.address import Address
from fastpaged.errors import InvalidRequestError


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("http://localhost:8000", Address("http://localhost:8000")),
        ("http://localhost:8000/", Address("http://localhost:8000")),
        ("http://localhost:8000/v1", Address("http://localhost:8000")),
        ("https://host/prefix/v1/", Address("https://host/prefix")),
        ("localhost:8000", Address("http://localhost:8000")),
        ("[::1]:8000", Address("http://[::1]:8000")),
        ("unix:/run/a.sock", Address("http://localhost", "/run/a.sock")),
        ("unix:///run/a.sock", Address("http://localhost", "/run/a.sock")),
        ("unix:a.sock", Address("http://localhost", "a.sock")),
    ],
)
def test_an_address_is_read_as_people_write_it(url: str, address: Address) -> None:
    assert Address.of(url) == address


@pytest.mark.parametrize(
    "url", ["", "http://", "ftp://a", "http://a:99999", "http://a:b", "http://[::1", "unix:", "http://a/?b=c"]
)
def test_what_is_no_address_is_refused_and_shown(url: str) -> None:
    with pytest.raises(InvalidRequestError, match=r"^--url must ") as error:
        Address.of(url)
    assert repr(url) in str(error.value)
