"""The error tree: codes are unique, and an error survives the process boundary."""

from penstock.core.errors import (
    InvalidParameter,
    ModelFileError,
    PenstockError,
    RequestError,
    error_classes,
    rebuild_error,
)


def test_codes_are_unique() -> None:
    def count(cls: type[PenstockError]) -> int:
        return 1 + sum(count(child) for child in cls.__subclasses__())

    assert len(error_classes()) == count(PenstockError)


def test_an_error_is_rebuilt_with_its_class_and_message() -> None:
    error = rebuild_error(InvalidParameter.code, "top_p: 2 is outside (0, 1].", "top_p")
    assert type(error) is InvalidParameter
    assert (error.message, error.param, str(error)) == ("top_p: 2 is outside (0, 1].", "top_p", error.message)
    assert isinstance(rebuild_error(ModelFileError.code, "x"), ModelFileError)
    assert type(rebuild_error("unheard_of", "x")) is PenstockError


def test_request_errors_are_4xx_and_retryable_only_where_there_were_too_many() -> None:
    for cls in error_classes().values():
        if issubclass(cls, RequestError):
            assert 400 <= cls.http_status < 500
            assert cls.retryable == (cls.http_status == 429)
        else:
            assert cls.http_status >= 500
