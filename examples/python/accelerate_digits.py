"""The digits with Hugging Face's Accelerate. Needs accelerate. Start it once or several times: python accelerate_digits.py

Accelerate is to see one process: with RANK or LOCAL_RANK in the environment it would average the gradients, too.

    launch_shm --workers 2 -- env -u RANK -u LOCAL_RANK -u WORLD_SIZE -u LOCAL_WORLD_SIZE python accelerate_digits.py
"""

import needed

needed.check("torch", "accelerate")

import os

import digits
import torch
from accelerate import Accelerator  # type: ignore[import-not-found,import-untyped,unused-ignore]

import ps_shm.torch


def main() -> None:
    torch.set_num_threads(1)
    images, labels = digits.load("train")
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(images, labels), batch_size=16, shuffle=True)
    accelerator = Accelerator(cpu=True)
    model, loader = accelerator.prepare(digits.model(), loader)  # not the optimizer: its state is the job's
    job = os.environ.get("PS_SHM_JOB", "digits")
    with ps_shm.torch.Optimizer(accelerator.unwrap_model(model), job, create=True, optimizer="momentum", momentum=0.9, lr=0.05) as opt:
        scheduler = torch.optim.lr_scheduler.OneCycleLR(opt, 0.1, total_steps=3 * len(loader))
        for _ in range(3):
            for batch, wanted in loader:
                opt.zero_grad()
                accelerator.backward(torch.nn.functional.cross_entropy(model(batch), wanted))
                opt.step()
                scheduler.step()
        print(f"worker {opt.worker.rank}: accuracy {digits.accuracy(model):.3f}")


if __name__ == "__main__":
    main()
