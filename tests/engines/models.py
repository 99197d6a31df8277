"""Tiny random models with a tokenizer, as Hugging Face keeps them, and what transformers computes with them."""
import math
import pathlib

import tokenizers
import torch
import transformers

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROMPT = "A trainer publishes the weights of a model"


def config(kind, **changes):
    made = {"llama": transformers.LlamaConfig, "qwen2": transformers.Qwen2Config}[kind]
    return made(**{"vocab_size": 512, "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2,
                   "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256,
                   "tie_word_embeddings": False, "dtype": "float32", **changes})


def model(kind, seed=1, **changes):
    """A model whose weights are large enough for two of them to differ clearly."""
    torch.manual_seed(seed)
    made = transformers.AutoModelForCausalLM.from_config(config(kind, **changes)).eval()
    renew(made, seed)
    return made


@torch.no_grad()
def renew(made, seed):
    """Other weights for a model."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in made.parameters():
        parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.15 + (parameter.dim() == 1))


def save(made, folder):
    """Writes the model with a tokenizer, which is trained on the README."""
    made.save_pretrained(folder)
    bpe = tokenizers.ByteLevelBPETokenizer()
    bpe.train([str(ROOT / "README.md")], vocab_size=450, show_progress=False, special_tokens=["<s>", "</s>"])
    transformers.PreTrainedTokenizerFast(tokenizer_object=bpe._tokenizer, bos_token="<s>", eos_token="</s>").save_pretrained(folder)
    return folder


@torch.no_grad()
def logprobs(made, tokens):
    """The log probability of each token but the first, given those before it."""
    logits = made(torch.tensor([tokens])).logits[0].float().log_softmax(-1)
    return [logits[place, token].item() for place, token in enumerate(tokens[1:])]


def distance(ones, others):
    assert len(ones) == len(others)
    return max(abs(one - other) if math.isfinite(one + other) else math.inf for one, other in zip(ones, others))
