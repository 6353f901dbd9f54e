"""Parameters sharded over two and three processes (FSDP2) against a plain network in one."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import bayesrule as br

sys.path.insert(0, str(Path(__file__).parent))
import sharded
from test_processes import TORCHRUN

SCRIPT = Path(__file__).parent / "sharded.py"
THREE = pytest.mark.slow  # a second start of processes; two are in `make test`


def run(count, *arguments, restarts=0):
    """What each of so many processes has found."""
    command = [str(count) if part == "2" else part for part in TORCHRUN]
    command += ["--max-restarts", str(restarts), str(SCRIPT), *map(str, arguments)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    return [torch.load(arguments[0] / f"{rank}.pt") for rank in range(count)]


@pytest.fixture(scope="module", params=[2, pytest.param(3, marks=THREE)])
def out(request, tmp_path_factory):
    out = tmp_path_factory.mktemp("sharded")
    return out, run(request.param, out)


@pytest.fixture(scope="module")
def alone():
    """A network that is not sharded, in one process, under the same noise."""
    return sharded.quiet(sharded.network())


def close(found, wanted):
    for kind in ("means", "deviations"):
        for name, value in wanted[kind].items():
            torch.testing.assert_close(found[kind][name], value, rtol=1e-5, atol=1e-5)
    assert found["determined"] == pytest.approx(wanted["determined"], rel=1e-4)


def test_under_the_same_noise_shares_learn_what_a_whole_network_does(out, alone):
    """Twenty steps with clipped gradients and two draws each: means and deviations to 1e-5."""
    for each in out[1]:
        close(each["quiet"], alone)


def test_vadam_learns_what_a_whole_network_does(out):
    wanted = sharded.vadam(sharded.network())
    for each in out[1]:
        close(each["vadam"], wanted)


def test_the_mode_needs_the_weight_decay_of_adam_alone(out):
    """Which is the gradient of −log N(w; 0, s²)/N; what is gathered is a network like any other."""
    wanted = sharded.mode(sharded.network(), br.priors.Gaussian(2.0).resolve(sharded.network()))
    for each in out[1]:
        for name, value in wanted.items():
            torch.testing.assert_close(each["mode"][name], value, rtol=1e-5, atol=1e-5)
            assert torch.equal(each["whole"][name], each["mode"][name])


def test_a_path_over_shares_is_that_of_a_whole_network(out):
    """Also through a checkpoint of the moments."""
    wanted = sharded.path(sharded.network())
    assert sum(each["path"]["held"] for each in out[1]) == wanted["held"]
    for each in out[1]:
        for name in ("mean", "values", "factor", "probs"):
            torch.testing.assert_close(each["path"][name], wanted[name], rtol=1e-4, atol=1e-6)


def test_mean_field_means_and_deviations_may_be_shares(out):
    wanted = sharded.mean_field(False)
    assert sum(each["bbb"]["held"] for each in out[1]) == wanted["held"]
    for each in out[1]:
        for name in ("mean", "std", "probs"):
            torch.testing.assert_close(each["bbb"][name], wanted[name], rtol=1e-5, atol=1e-5)


def test_each_share_has_its_own_noise_and_all_are_of_one_network(out):
    first, *others = (each["noisy"] for each in out[1])
    for other in others:
        assert not torch.equal(first["noise"][0][:3], other["noise"][0][:3])
        assert all(torch.equal(first["means"][name], other["means"][name]) for name in first["means"])
        assert all(torch.equal(first["deviations"][name], other["deviations"][name]) for name in first["means"])
        assert torch.equal(first["probs"], other["probs"])
    assert sum(each["noisy"]["held"] for each in out[1]) == sum(p.numel() for p in sharded.network().parameters())
    assert all(each["noisy"]["restored"] for each in out[1])  # after a block, and an exception in one


def test_a_look_at_drawn_weights_says_how_to_end_it(out):
    for each in out[1]:
        assert any("call model.reshard() after it" in text for text in each["noisy"]["warned"])


SAID = {
    "vogn": "TypeError: VOGN needs whole weights, and these parameters are sharded",
    "ogn": "TypeError: OGN needs whole weights",
    "von": "TypeError: VON needs whole weights",
    "to_posterior": "TypeError: model must be a network that is not sharded",
    "no names": "ValueError: '0' must be a parameter of the model, which has 0.weight, 0.bias, 2.weight, ...",
    "fit": "TypeError: '0.weight' is sharded (fully_shard), and a fit copies its network",
}


@pytest.mark.parametrize("name", SAID)
def test_what_cannot_be_done_with_shares_is_said(out, name):
    assert out[1][0]["refused"][name].startswith(SAID[name])


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 3])
def test_a_checkpoint_goes_on_in_another_number_of_processes(out, alone, count, tmp_path):
    for each in run(count, tmp_path, out[0] / "checkpoint"):
        close(each["resumed"], alone)


@pytest.mark.slow
def test_a_lost_process_starts_again_and_all_go_on_from_the_last_checkpoint(alone, tmp_path):
    """A real SIGKILL in step 12 of 20; restarts to spare, as gloo may meet an address of the lost process at first."""
    for each in run(2, tmp_path, "lost", restarts=3):
        assert each["lost"]["from"] == [4, 8, 12]
        close(each["lost"], alone)
