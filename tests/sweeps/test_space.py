"""What a sweep draws, and what a draw becomes."""

import re

import pytest

import bayesrule as br
from bayesrule.methods import BBB, MAP, SWAG, Ensemble, MCDropout
from bayesrule.optim import Group, Recipe
from bayesrule.sweeps import Choice, Log, Uniform, Whole, default_space, parse_space
from bayesrule.sweeps.space import Space


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1e-4:1:log", Log(1e-4, 1)),
        ("0:0.99", Uniform(0, 0.99)),
        ("2:40:int", Whole(2, 40)),
        ("adam,sgd", Choice(["adam", "sgd"])),
        ("1,2,4", Choice([1, 2, 4])),
        ("none,kaiming", Choice([None, "kaiming"])),
    ],
)
def test_a_range_in_words(text, expected):
    assert parse_space([f"x={text}"]) == {"x": expected}
    assert parse_space([f"x={expected}"]) == {"x": expected}


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["lr"], "--space must be FIELD=RANGE, such as lr=1e-4:1:log, got 'lr'"),
        (["lr="], "must be FIELD=RANGE"),
        (["lr=1:0.1"], "--space lr: low must be at most high, and both finite, not 1.0 and 0.1"),
        (["lr=0:1:log"], "low of a Log range must be positive, not 0.0"),
        (["lr=0:1:lin"], "a range must be LOW:HIGH, LOW:HIGH:log, LOW:HIGH:int, or A,B,…, not '0:1:lin'"),
        (["lr=0:inf"], "both finite"),
        (["lr=a:b"], "a range must be"),
        (["rank=2:4.5:int"], "high of a Whole range must be a whole number, not 4.5"),
        (["lr=1,1"], "options must be different values"),
        (["lr=0:1", "lr=0:2"], "--space must name each field once, got lr twice"),
    ],
)
def test_words_that_are_no_space(words, error):
    with pytest.raises(ValueError, match=re.escape(error)):
        parse_space(words)


@pytest.mark.parametrize(
    ("ranges", "method", "error"),
    [
        ({}, BBB(), "space must name at least one setting of bbb"),
        ({"lrr": Log(1e-3, 1)}, MAP(), "unknown setting of map 'lrr': did you mean 'lr'?"),
        ({"momentun": Log(1e-3, 1)}, BBB(), "did you mean 'momentum'?"),
        ({"base.rank": Whole(2, 4)}, Ensemble(), "unknown setting of map 'rank'"),
        ({"base": Choice(["map", "swag"])}, Ensemble(), "it is a method: search its fields, base.lr"),
        ({"momentum": Uniform(0, 0.9)}, BBB(), "space['momentum'] is never drawn: the optimizer is adam"),
        ({"sgd.momentum": Uniform(0, 0.9)}, BBB(), "is never drawn"),
        ({"adam.momentum": Uniform(0, 0.9)}, BBB(), "unknown setting of bbb 'momentum'"),
        ({"momentum": Uniform(0, 0.9), "optimizer.momentum": Uniform(0, 1)}, BBB(optimizer="sgd"), "are the same"),
        ({"sigma_lr": Log(1e-5, 1), "sigma_lr_ratio": Log(1e-3, 1)}, BBB(), "are the same"),
        ({"sigma_lr": Log(1e-5, 1)}, BBB(deviations=Group("sgd")), "has no effect: the deviations are trained by"),
        ({"momentum": Uniform(-2, 0.9)}, BBB(optimizer="sgd"), "space must hold only what bbb can be"),
        ({"optimizer": Choice(["adam", "adan"])}, BBB(), "unknown optimizer 'adan'"),
        ({"temperature": Uniform(0, 1)}, BBB(), "temperature must be a positive number, not 0.0"),
        ({"swa_lr_ratio": Uniform(0.1, 2)}, SWAG(), "swa_lr_ratio must lie in (0, 1], not 2.0"),
        ({"rank": Uniform(2, 4)}, SWAG(), "space['rank'] must be whole numbers, not 2.0:4.0: Whole(2, 40)"),
        ({"estimator": Uniform(0, 1)}, BBB(), "space['estimator'] must be a choice"),
    ],
)
def test_spaces_that_cannot_be(ranges, method, error):
    with pytest.raises(ValueError, match=re.escape(error)):
        Space(ranges, method)


def test_a_range_must_be_one():
    with pytest.raises(TypeError, match="must be a range such as Log"):
        Space({"lr": (0, 1)}, MAP())
    with pytest.raises(TypeError, match="options must be a list, not the text 'adam'"):
        Choice("adam")
    with pytest.raises(TypeError, match="options must be numbers, texts, booleans or None"):
        Choice([(0.9, 0.99)])


def test_settings_become_a_method():
    ranges = {
        "optimizer": Choice(["adam", "sgd", "yellowfin"]),
        "lr": Log(1e-3, 1),
        "yellowfin.lr": Log(0.1, 10),
        "sgd.momentum": Uniform(0, 0.9),
        "beta1": Uniform(0.5, 0.95),
        "sigma_lr": Log(1e-5, 1e-1),
        "temperature": Log(1e-3, 1),
    }
    space = Space(ranges, BBB(initial_std=0.05))
    drawn = [
        set(space.draw(lambda key, of, i=i: of.options[i] if isinstance(of, Choice) else of.low)) for i in range(3)
    ]
    common = {"optimizer", "sigma_lr", "temperature"}
    assert drawn == [common | {"lr", "beta1"}, common | {"lr", "sgd.momentum"}, common | {"yellowfin.lr"}]

    adam = space.candidate({"optimizer": "adam", "lr": 0.1, "beta1": 0.8, "sigma_lr": 0.01, "temperature": 0.5})
    assert adam.fit == {"temperature": 0.5}
    assert adam.method == BBB(
        lr=0.1, sigma_lr_ratio=0.1, initial_std=0.05, optimizer=Recipe("adam", {"betas": (0.8, 0.999)})
    )
    sgd = space.candidate({"optimizer": "sgd", "lr": 0.2, "sgd.momentum": 0.7, "sigma_lr": 0.02})
    assert sgd.fit == {}
    assert sgd.method.optimizer == Recipe("sgd", {"momentum": 0.7})
    assert sgd.assignments == {"optimizer": "sgd", "lr": 0.2, "optimizer.momentum": 0.7, "sigma_lr_ratio": 0.1}
    assert space.candidate({"optimizer": "yellowfin", "yellowfin.lr": 2.0}).method.lr == 2.0


def test_usual_spaces():
    assert set(default_space(BBB())) == {
        "optimizer",
        "yellowfin.lr",
        "sgd.momentum",
        "lr",
        "sigma_lr_ratio",
        "temperature",
        "initial_std",
    }
    assert "sigma_lr_ratio" not in default_space(BBB(deviations=Group("sgd")))
    assert set(default_space(SWAG())) == {"lr", "rank", "swa_lr_ratio"}
    assert set(default_space(MCDropout())) == {"lr", "rate"}
    assert set(default_space(Ensemble(base=BBB()))) >= {"base.lr", "base.sgd.momentum", "temperature"}
    for name in br.methods.available():
        method = br.methods.choose(name)
        Space(default_space(method), method)


def test_a_usual_space_without_what_is_set():
    assert "sgd.momentum" not in default_space(BBB(), {"optimizer.momentum"})
    assert not {"lr", "yellowfin.lr"} & set(default_space(BBB(), {"lr"}))
    sgd, yellowfin = (default_space(BBB(optimizer=name), {"optimizer"}) for name in ("sgd", "yellowfin"))
    assert {"sgd.momentum", "lr"} <= set(sgd)
    assert "yellowfin.lr" not in sgd
    assert "yellowfin.lr" in yellowfin
    assert not {"sgd.momentum", "lr", "optimizer"} & set(yellowfin)
    Space(sgd, BBB(optimizer="sgd"))
    Space(yellowfin, BBB(optimizer="yellowfin"))
    with pytest.raises(ValueError, match="space must be given for map: no field of it but lr has a usual range"):
        default_space(MAP(), {"lr"})


def test_without_the_package_its_optimisers_are_left_out(monkeypatch):
    monkeypatch.setattr("bayesrule.sweeps.space.find_spec", lambda name: None)
    assert not {"adabound", "amsbound"} & set(default_space(BBB())["optimizer"].options)
