"""Models of Hugging Face with adapters of PEFT, as they are: small ones from configurations, without a download."""

import warnings

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import bayesrule as br
from bayesrule.likelihoods import Tokens
from bayesrule.starts import reinitialise

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    transformers = pytest.importorskip("transformers", reason="needs the extra 'test': transformers")
    peft = pytest.importorskip("peft", reason="needs the extra 'test': peft")

# what these packages, and torch's kernels for them, say of themselves
pytestmark = [pytest.mark.filterwarnings("ignore")]

N, T, V = 48, 8, 30
SMALL = {"vocab_size": V, "max_position_embeddings": T, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
TRAINED = ("lora_A", "lora_B", "classifier")


def classifier():
    torch.manual_seed(0)
    config = transformers.BertConfig(
        **SMALL, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8, num_labels=3
    )
    lora = peft.LoraConfig(task_type="SEQ_CLS", r=2, target_modules=["query", "value"])
    return peft.get_peft_model(transformers.BertForSequenceClassification(config), lora)


def language_model():
    torch.manual_seed(0)
    still = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "use_cache": False}
    config = transformers.GPT2Config(vocab_size=V, n_positions=T, n_embd=8, n_layer=1, n_head=2, **still)
    lora = peft.LoraConfig(task_type="CAUSAL_LM", r=2, target_modules=["c_attn"], fan_in_fan_out=True)
    return peft.get_peft_model(transformers.GPT2LMHeadModel(config), lora)


class Texts(Dataset):
    """Rows of dicts, half of them padded."""

    def __init__(self, tags=False):
        generator = torch.Generator().manual_seed(1)
        self.ids = torch.randint(1, V, (N, T), generator=generator)
        self.mask = torch.ones_like(self.ids)
        self.mask[::2, 5:] = 0
        self.labels = (self.ids[:, 0] > 10).long() + (self.ids[:, 1] > 20).long()
        if tags:
            self.labels = self.ids.masked_fill(self.mask == 0, -100)

    def __len__(self):
        return N

    def __getitem__(self, i):
        return {"input_ids": self.ids[i], "attention_mask": self.mask[i], "labels": self.labels[i]}


KRONECKER = br.methods.Laplace("all", "kronecker")
TEXTS, LINES = Texts(), Texts(tags=True)


def inputs(texts):
    return {"input_ids": texts.ids, "attention_mask": texts.mask}


@pytest.mark.parametrize("method", ["ivon", "vogn", "swag", "laplace", KRONECKER, br.methods.Ensemble(2)], ids=str)
def test_the_posterior_and_its_file_are_of_the_adapters(method, tmp_path):
    model = classifier()
    before = {name: p.clone() for name, p in model.named_parameters()}
    posterior = br.fit(model, TEXTS, method, prior=1.0, epochs=1, out=tmp_path)
    for part in getattr(posterior, "components", [posterior]):
        weights = part.states[0] if isinstance(part, br.posteriors.Particles) else part.mean
        assert all(any(kind in name for kind in TRAINED) for name in weights if name in before)
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())
    again = br.load(tmp_path / "posterior.safetensors", classifier())
    assert torch.equal(again.predict(inputs(TEXTS)).probs, posterior.predict(TEXTS).probs)
    ours = {p.data_ptr() for p in posterior.context.model.parameters() if not p.requires_grad}
    for part in getattr(posterior, "components", []):
        assert {p.data_ptr() for p in part.context.model.parameters() if not p.requires_grad} == ours


def test_log_probabilities_of_a_language_model_are_those_of_its_own_loss():
    model = language_model().eval()
    batch = LINES[list(range(N))]
    posterior = br.fit(model, LINES, "mle", Tokens(shift=1), epochs=0)
    with torch.no_grad():
        own = float(model(**batch).loss)
    assert br.evaluate(posterior, LINES, bootstrap=0)["nll"] == pytest.approx(own, rel=1e-5)


def test_a_language_model_under_adapters_that_are_drawn():
    sampled = br.methods.Laplace("all", "kronecker", labels="sampled")
    for method in ("ivon", sampled):
        posterior = br.fit(language_model(), LINES, method, Tokens(shift=1), prior=1.0, epochs=1)
        assert posterior.predict(inputs(LINES), samples=4).epistemic.max() > 0


def stepped(halves, checkpointing=False, kind=br.optim.IVON):
    """The means after two steps on the same examples in one or more parts."""
    model = classifier().train()
    if checkpointing:
        model.gradient_checkpointing_enable()
    watched = {"model": model} if kind is br.optim.VOGN else {}
    optimizer = kind(model.named_parameters(), lr=0.1, ess=N, **watched)
    batch = TEXTS[list(range(16))]
    for _ in range(2):
        optimizer.zero_grad()
        with optimizer.sampled():
            for rows in torch.arange(16).chunk(halves):
                (model(**{name: part[rows] for name, part in batch.items()}).loss / halves).backward()
        nn.utils.clip_grad_norm_([p for p in model.parameters() if p.requires_grad], 1.0)
        optimizer.step()
    return {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}, optimizer, model


def test_gradients_that_are_accumulated_or_made_again_are_the_same():
    whole = stepped(1)[0]
    for found in (stepped(2)[0], stepped(1, checkpointing=True)[0]):
        for name, mean in whole.items():
            torch.testing.assert_close(found[name], mean, rtol=1e-4, atol=1e-6)


def test_what_an_optimiser_has_learnt_predicts():
    _, optimizer, model = stepped(1)
    posterior = optimizer.to_posterior(model, "categorical")
    assert 0 < br.evaluate(posterior, TEXTS, bootstrap=0)["nll"] < 2


def test_batches_that_are_padded_to_lengths_of_their_own():
    def pad(rows):
        length = max(int(row["attention_mask"].sum()) for row in rows)
        return {key: torch.stack([row[key][:length] if row[key].ndim else row[key] for row in rows]) for key in rows[0]}

    loader = DataLoader(TEXTS, batch_size=1, collate_fn=pad)
    posterior = br.fit(classifier(), loader, "map", prior=1.0, epochs=1)
    assert torch.allclose(posterior.predict(loader).probs, posterior.predict(TEXTS).probs, atol=1e-5)


def test_autocast_and_one_dict_in_memory():
    data = inputs(TEXTS) | {"labels": TEXTS.labels}
    posterior = br.fit(classifier(), data, "ivon", prior=1.0, epochs=1, autocast="bfloat16", val=0.25)
    assert posterior.info["n"] == 36
    assert posterior.predict(inputs(TEXTS)).probs.shape == (N, 3)


def test_a_fresh_start_of_adapters_is_the_function_of_the_base():
    model = classifier().eval()
    before = {name: p.clone() for name, p in model.named_parameters()}
    reinitialise(model)
    for name, p in model.named_parameters():
        assert torch.equal(p, before[name]) == (not p.requires_grad or "lora_B" in name), name


@pytest.mark.slow
def test_a_compiled_model():
    compiled = torch.compile(classifier(), backend="eager")
    posterior = br.fit(compiled, TEXTS, "ivon", prior=1.0, epochs=1)
    plain = br.fit(classifier(), TEXTS, "ivon", prior=1.0, epochs=1)
    assert torch.allclose(posterior.predict(TEXTS).probs, plain.predict(TEXTS).probs, atol=1e-5)
