"""Which loops write past the caches: a wrong one would only be slow, and no sum would tell."""

from __future__ import annotations

import pytest

from common.kv.checksum.definition import WORDS


def test_only_the_nontemporal_copy_bypasses_the_caches_and_it_ends_with_a_fence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Not at the top: engines are forked from a test runner that has not loaded llvmlite.
    from common.kv.checksum import codegen

    codes: list[str] = []
    compiled = codegen._compiled

    def noted(code: str) -> object:
        codes.append(code)
        return compiled(code)

    monkeypatch.setattr(codegen, "_compiled", noted)
    codegen.loops(summing=True)
    _, *functions = codes[0].split("define ")
    found = {
        function.split('@"')[1].split('"')[0]: (function.count("!nontemporal"), "fence" in function)
        for function in functions
    }
    assert found == {
        "read": (0, False),
        "copy": (0, False),
        "copy_nontemporal": (WORDS, True),
    }
