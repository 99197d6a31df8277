"""A small model, its training, and a scaler of gradients, for tests of PyTorch models."""
import torch


def small_model(seed=0):
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(4, 8, bias=False), torch.nn.BatchNorm1d(8), torch.nn.ReLU(), torch.nn.Linear(8, 2))


def batch(seed=1):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(32, 4, generator=generator)
    return x, (x[:, 0] > 0).long()


def train(model, optimizer, steps, seed=1):
    x, y = batch(seed)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
    return loss.item()


class Scaler:
    """What torch.amp.GradScaler does, which has no CPU in older versions."""

    def __init__(self, scale):
        self.factor, self.is_finite, self.is_unscaled = scale, True, False

    def scale(self, loss):
        return loss * self.factor

    def unscale_(self, optimizer):
        gradients = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        self.is_finite = all(torch.isfinite(g).all() for g in gradients)
        [g.div_(self.factor) for g in gradients]
        self.is_unscaled = True

    def step(self, optimizer):
        if not self.is_unscaled:
            self.unscale_(optimizer)
        if self.is_finite:
            optimizer.step()
        self.is_unscaled = False

    def update(self):
        pass


def half_model(dtype):
    """Parameters of that type, one of them not contiguous, and one of float32 between them."""

    class Mixed(torch.nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.first = torch.nn.Linear(4, 8).to(dtype)
            self.first.weight = torch.nn.Parameter(self.first.weight.detach().t().contiguous().t())
            self.norm = torch.nn.LayerNorm(8)
            self.last = torch.nn.Linear(8, 2).to(dtype)

        def forward(self, x):  # computes in float32: PyTorch 1.13 cannot multiply in float16 on the CPU
            linear = torch.nn.functional.linear
            hidden = self.norm(linear(x, self.first.weight.float(), self.first.bias.float()))
            return linear(hidden, self.last.weight.float(), self.last.bias.float())

    return Mixed()
