from __future__ import annotations

import contextlib
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monolith.core.errors import ConfigError
from monolith.discovery.address import advertised_host, checked_host, join_address, split_address

hosts = st.one_of(
    st.ip_addresses(v=4).map(str),
    st.ip_addresses(v=6).map(str),
    st.from_regex(r"[abz019-]{1,63}(\.[abz019-]{1,9}){0,3}\.?", fullmatch=True),
)


@given(hosts, st.integers(0, 65535))
def test_an_address_can_be_taken_apart_again(host: str, port: int) -> None:
    assert split_address(join_address(host, port)) == (host, port)


@given(st.text(max_size=30))
def test_any_text_is_an_address_or_a_config_error(text: str) -> None:
    with contextlib.suppress(ConfigError):
        host, port = split_address(text)
        assert split_address(join_address(host, port)) == (host, port)


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("", "give host:port"),
        ("host", "give host:port"),
        ("host:", "give host:port"),
        (":80", "give a host name"),
        ("host:x", "give host:port"),
        ("host:-1", "give host:port"),
        ("host:65536", "from 0 to 65535"),
        ("::1:80", "in brackets"),
        ("[::1:80", "expected an IPv6 address"),
        ("[host]:80", "expected an IPv6 address"),
        ("http://host:80", "in brackets|without blanks"),
        ("ps-0..svc:80", "host is 'ps-0..svc', expected 1 to 63 letters"),
        (f"{'a' * 64}.svc:80", "expected 1 to 63 letters between two dots"),
        ("a b:80", "without blanks"),
        ("user@host:80", "without blanks"),
    ],
)
def test_a_wrong_address_names_itself_and_the_remedy(address: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why) as caught:
        split_address(address)
    assert repr(address) in str(caught.value)


def test_brackets_are_stripped_from_a_host() -> None:
    assert checked_host("[fd00::1]") == "fd00::1"


def resolved(name: str, family: socket.AddressFamily) -> str:
    return f"{name}/{family.name}"


@pytest.mark.parametrize(
    ("environment", "host"),
    [
        ({"CLOUDNATIVE_INET_ADDR": "10.0.0.1,10.0.0.2", "YARN_INET_ADDR": "10.0.0.3"}, "10.0.0.1"),
        ({"CLOUDNATIVE_INET_ADDR": "", "YARN_INET_ADDR": "10.0.0.3"}, "10.0.0.3"),
        ({"CLOUDNATIVE_INET_ADDR": "[fd00::1]"}, "fd00::1"),
        ({}, "box/AF_UNSPEC"),
        ({"MY_HOST_IPV6": "fd00::1"}, "box/AF_INET6"),
        ({"MY_HOST_IPV6": "fd00::1", "MY_POD_IP": "10.0.0.9"}, "box/AF_UNSPEC"),
        ({"MY_HOST_IPV6": "fd00::1", "MY_HOST_IP": "10.0.0.9"}, "box/AF_UNSPEC"),
    ],
)
def test_the_environment_names_the_host_of_this_machine(environment: dict[str, str], host: str) -> None:
    assert advertised_host(environment, host_name=lambda: "box", resolve=resolved) == host


def test_a_wrong_variable_is_named() -> None:
    with pytest.raises(ConfigError, match="YARN_INET_ADDR: host is 'a b'"):
        advertised_host({"YARN_INET_ADDR": "a b"})


def test_an_unresolvable_machine_name_raises_with_a_remedy() -> None:
    def fail(name: str, family: socket.AddressFamily) -> str:
        raise socket.gaierror("no such name")

    with pytest.raises(ConfigError, match=r"'box' cannot be resolved.*set CLOUDNATIVE_INET_ADDR"):
        advertised_host({}, host_name=lambda: "box", resolve=fail)
