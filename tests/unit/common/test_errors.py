"""The error table is complete and consistent."""

from common.errors import HTTP_MAPPINGS, BatonError, Code, ConfigError


def test_every_code_has_a_face() -> None:
    assert set(HTTP_MAPPINGS) == set(Code)


def test_overload_is_always_retryable_and_bad_requests_never() -> None:
    for code, http in HTTP_MAPPINGS.items():
        if http.status in (429, 503):
            assert http.retryable, code
        if http.status in (400, 404, 405, 413):
            assert not http.retryable, code
        assert 400 <= http.status < 600


def test_config_error_carries_the_key() -> None:
    error = ConfigError("gateway.port", "Expected int, got str")
    assert isinstance(error, BatonError)
    assert error.param == "gateway.port"
    assert error.message == "gateway.port: Expected int, got str"
