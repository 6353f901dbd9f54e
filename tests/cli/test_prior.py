import json

import pytest

from bayesrule.cli.expressions import formula


def test_an_answer_and_its_picture(bayesrule, tmp_path, painted):
    code, out, err = bayesrule("prior", "--penalty", "l2", "--factor", 2, "--scale", 0.1, "--out", "answer")
    assert code == 0, err
    assert "Gaussian(scale=0.5, mean=0.0)" in out
    assert (tmp_path / "answer/figure.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads((tmp_path / "answer/result.json").read_text())["exact"]["fields"]["scale"] == 0.5


def test_a_verdict(bayesrule, as_json):
    code, out, _ = bayesrule("prior", "--penalty", "l2", "--scale", "0.1:2")
    assert code == 0
    assert out.startswith("no prior\nreason      depends on ν")
    found = as_json("prior", "--penalty", "abs(mu)", "--family", "student", "--df", 4, "--scale", 0.3)
    assert found["reason"] == "no deconvolution"


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (["--penalty", "l1", "--family", "point-mass"], "Laplace(scale=1.0"),
        (["--penalty", "group", "--family", "point-mass", "--factor", "3"], "variance    (n + 1)/9"),
        (["--penalty", "0.5*(mu**2 + nu**2) - log(nu)", "--scale", "0.1:2"], "Gaussian(scale=1.0"),
        (["--penalty", "mu**4 + cos(mu)", "--scale", "0.2"], "see figure.png"),
    ],
)
def test_penalties_by_name_and_by_formula(line, says, bayesrule):
    code, out, err = bayesrule("prior", *line)
    assert code == 0, err
    assert says in out.replace("0.9999999999999999", "1.0").replace("1.0000000000000002", "1.0")


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (["--penalty", "l3"], "did you mean 'l2'"),
        (["--penalty", "l2", "--family", "gauss"], "did you mean 'gaussian'"),
        (["--penalty", "l2", "--scale", "a:b"], "low:high"),
        (["--penalty", "l2", "--scale", "2:1"], "rising"),
        (["--penalty", "l2", "--df", "3"], "--df is of student"),
        (["--penalty", "l2", "--family", "point-mass", "--scale", "1"], "no scale"),
        (["--penalty", "mu**2", "--factor", "2"], "write it into the formula"),
        (["--penalty", "log(mu)"], "not finite"),
        (["--penalty", "1/0 + mu**2"], "not finite"),
        (["--penalty", "9**9**9 * mu**2"], "not finite"),
        (["--penalty", "(0-1)**0.5 * mu**2"], "not finite"),
        (["--penalty", "1" * 400 + "*mu**2"], "not finite"),
        (["--penalty", "mu +"], "no formula"),
        ([], "--penalty"),
    ],
)
def test_bad_input(line, says, bayesrule):
    code, _, err = bayesrule("prior", *line)
    assert code == 2
    assert says in err


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('true')",
        "mu.__class__",
        "(lambda: mu)()",
        "[mu for mu in (1, 2)]",
        "mu if mu else nu",
        "open('x')",
        "exp(mu, nu)",
        "'text'",
        "True",
        "mu[0]",
        "mu := 3",
        "f'{mu}'",
        "(" * 500 + "mu" + ")" * 500,
        "mu" + "+mu" * 1000,
    ],
)
def test_a_formula_is_never_run_as_python(text):
    with pytest.raises(ValueError, match=r"penalty|function|argument"):
        formula(text)
