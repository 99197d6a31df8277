"""Trainers of other projects that publish to a server of vLLM: TRL's, and the callbacks of docs/publication.md."""
import pathlib
import re

import datasets
import lightning
import pytest
import torch
import transformers
import trl

import models
import ps_shm.engines.trl
import ps_shm.torch
from conftest import TOKENS, is_close

PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs/publication.md"


def settings(folder, **changes):
    return {"output_dir": str(folder), "max_steps": 2, "per_device_train_batch_size": 2, "learning_rate": 0.05, "use_cpu": True,
            "bf16": False, "save_strategy": "no", "report_to": [], "disable_tqdm": True, **changes}


def test_trl_trains_with_what_the_server_answers(llama, tmp_path, monkeypatch):
    monkeypatch.setattr("trl.generation.vllm_generation.VLLMClient", trl.generation.vllm_generation.VLLMClient)
    ps_shm.engines.trl.use()
    model = models.model("llama", seed=70, vocab_size=500)
    tokenizer = transformers.AutoTokenizer.from_pretrained(llama.folder)
    tokenizer.pad_token = tokenizer.eos_token
    trainer = trl.GRPOTrainer(
        model=model, processing_class=tokenizer, train_dataset=datasets.Dataset.from_list([{"prompt": models.PROMPT}] * 8),
        reward_funcs=lambda completions, **given: [float(len(set(one))) for one in completions],
        args=trl.GRPOConfig(**settings(tmp_path, num_generations=2, max_completion_length=8, use_vllm=True, vllm_mode="server",
                                       vllm_server_base_url=llama.server.url)))
    client = trainer.vllm_generation.vllm_client
    before = models.logprobs(model, TOKENS)
    trainer.train()
    trainer.vllm_generation.sync_weights()
    after = models.logprobs(model.eval(), TOKENS)
    assert is_close(llama.server.logprobs(TOKENS), after) and not is_close(after, before)
    with pytest.raises(TypeError, match="a generation has all parameters"):
        client.update_named_param("lm_head.weight", model.lm_head.weight)
    assert client._publisher.generation >= 2
    client.close_communicator()


class Module(lightning.LightningModule):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def training_step(self, batch, index):
        return self.model(input_ids=batch["input_ids"], labels=batch["input_ids"]).loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.05)


@pytest.mark.parametrize("library", ["transformers", "lightning"])
def test_the_callbacks_of_the_page_publish_what_is_trained(name, llama, engines, tmp_path, monkeypatch, library):
    monkeypatch.chdir(tmp_path)  # Lightning writes there
    (text,) = [one for one in re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.M | re.S) if f"({library}." in one]
    model = models.model("llama", seed=80, vocab_size=500)
    before = models.logprobs(model, TOKENS)
    data = [{"input_ids": torch.tensor(TOKENS), "labels": torch.tensor(TOKENS)}] * 8
    names = {"ps_shm": ps_shm, "torch": torch, "engines": engines, library: globals()[library], "model": model, "data": data}
    if library == "transformers":
        names["args"] = transformers.TrainingArguments(**settings(tmp_path))
    else:
        names["module"] = Module(model)
    exec(compile(text.replace('"weights"', repr(name)).replace("% 100", "% 2").replace("max_steps=1000", "max_steps=2"), str(PAGE), "exec"), names)
    after = models.logprobs(model.eval(), TOKENS)
    assert is_close(llama.server.logprobs(TOKENS), after) and not is_close(after, before)
