"""For whom the hosts of an allow-list may speak, and lists that contradict themselves."""

from __future__ import annotations

from pathlib import Path

import pytest

from common.errors import ConfigError
from common.net.sockets import new_key_pair
from common.security.files import HostKeys, PeersFile, check_peers
from common.security.peers import AllowList
from common.security.speaker import Speaker


def entry(name: str, roles: list[str] | None = None, names: list[str] | None = None) -> HostKeys:
    return HostKeys(
        name=name,
        keys=[new_key_pair()[0]],
        roles=roles or [],  # type: ignore[arg-type]
        names=names or [],
    )


LIST = AllowList(
    PeersFile(
        peers=[
            entry("old"),
            entry("p", ["prefill"]),
            entry("d", ["decode"], ["d0", "d1"]),
            entry("r", ["router"]),
            entry("n", names=["d7"]),
        ]
    ),
    "r",
)


@pytest.mark.parametrize(
    ("host", "role", "name", "may"),
    [
        ("old", "decode", "d5", True),
        ("old", "gateway", "g0", True),
        ("old", "decode", "d0", False),
        ("old", "prefill", "d0", True),
        ("p", "prefill", "p0", True),
        ("p", "decode", "d5", False),
        ("p", "gateway", "g0", False),
        ("d", "decode", "d1", True),
        ("d", "decode", "d2", False),
        ("d", "prefill", "d1", False),
        ("r", "decode", "d5", False),
        ("n", "decode", "d7", True),
        ("n", "prefill", "d7", True),
        ("n", "decode", "d8", False),
        ("old", "prefill", "d7", False),
        ("gone", "decode", "d5", False),
        ("old", "mixed", "d5", True),
        ("old", "mixed", "d0", False),
        ("p", "mixed", "p0", False),
        ("d", "mixed", "d1", False),
        ("n", "mixed", "d7", True),
    ],
)
def test_a_host_speaks_for_its_roles_and_names(host: str, role: str, name: str, may: bool) -> None:
    assert (LIST.speaker(host, role, name).denied == "") is may


def test_only_a_listed_name_may_be_taken_from_the_host_that_used_it() -> None:
    assert LIST.speaker("d", "decode", "d0") == Speaker("d", "", listed=True)
    assert LIST.speaker("old", "decode", "d5") == Speaker("old", "", listed=False)
    assert LIST.speaker("n", "mixed", "d7") == Speaker("n", "", listed=True)


@pytest.mark.parametrize(
    ("one", "other", "good"),
    [
        (entry("a", names=["x"]), entry("b", names=["x"]), False),
        (entry("a", ["decode"], ["x"]), entry("b", names=["x"]), False),
        (entry("a", ["decode"], ["x"]), entry("b", ["prefill"], ["x"]), True),
    ],
)
def test_a_name_belongs_to_one_host(one: HostKeys, other: HostKeys, good: bool) -> None:
    file = PeersFile(peers=[one, other])
    if good:
        check_peers(file, Path("x"))
        return
    with pytest.raises(ConfigError, match="twice"):
        check_peers(file, Path("x"))
