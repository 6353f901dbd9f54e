import pytest

from bayesrule import likelihoods, methods, naming


def test_names_and_objects_are_the_same():
    assert methods.choose("swag") == methods.SWAG()
    assert methods.choose(methods.SWAG(rank=3)).rank == 3


@pytest.mark.parametrize(
    "method", [*(kind() for kind in methods.AVAILABLE.values()), methods.Ensemble(3, methods.SWAG(rank=4))]
)
def test_methods_come_back_from_plain_data(method):
    assert methods.from_spec(naming.to_spec(method)) == method


def test_only_listed_classes_come_out_of_a_file():
    with pytest.raises(ValueError, match=r"unknown likelihood 'os\.system'"):
        naming.from_spec("likelihood", {"name": "os.system", "fields": {}}, likelihoods.AVAILABLE)


def test_errors_name_the_nearest():
    with pytest.raises(ValueError, match="unknown method 'ensmble': did you mean 'ensemble'"):
        methods.choose("ensmble")
    with pytest.raises(TypeError, match="method must be a name or a method object, not int"):
        methods.choose(3)
