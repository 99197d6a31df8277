"""The digits with Lightning. Needs lightning. Start it once or several times: python lightning_digits.py

    launch_shm --workers 2 --optimizer adam --lr 0.003 -- python lightning_digits.py

The Trainer of each process sees one device. Its checkpoints have the state of the optimizer, which is the job's.
"""

import needed

needed.check("torch", "lightning")

import os
from typing import Any

import digits
import lightning  # type: ignore[import-not-found,unused-ignore]
import torch

import ps_shm.torch


class Digits(lightning.LightningModule):  # type: ignore[misc,unused-ignore]
    def __init__(self) -> None:
        super().__init__()
        self.layers = digits.model()

    def training_step(self, batch: Any, _: int) -> torch.Tensor:
        images, labels = batch
        return torch.nn.functional.cross_entropy(self.layers(images), labels)

    def configure_optimizers(self) -> Any:
        job = os.environ.get("PS_SHM_JOB", "digits")
        opt = ps_shm.torch.Optimizer(self, job, create=True, optimizer="adam", lr=0.003)
        return {"optimizer": opt, "lr_scheduler": torch.optim.lr_scheduler.ExponentialLR(opt, 0.7)}

    def on_fit_end(self) -> None:
        for opt in self.trainer.optimizers:
            opt.close()  # type: ignore[attr-defined,unused-ignore]


def main() -> None:
    torch.set_num_threads(1)
    images, labels = digits.load("train")
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(images, labels), batch_size=16, shuffle=True)
    model = Digits()
    trainer = lightning.Trainer(accelerator="cpu", devices=1, max_epochs=3, logger=False, enable_checkpointing=False,
                                enable_progress_bar=False, enable_model_summary=False, gradient_clip_val=1.0)  # fmt: skip
    trainer.fit(model, loader)
    print(f"accuracy {digits.accuracy(model.layers):.3f}")


if __name__ == "__main__":
    main()
