"""A small distributed program, to be run by torchrun: DDP, FSDP or a tensor-parallel layer."""

import argparse
import os
import time

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset


class Examples(Dataset):
    """Batches that take a while on one rank, where that is asked for."""

    def __init__(self, count, width, seconds):
        self.count, self.width, self.seconds = count, width, seconds

    def __len__(self):
        return self.count

    def __getitem__(self, place):
        time.sleep(self.seconds)
        return torch.full((32, self.width), 0.01 * (place % 7))


class Layer(torch.nn.Linear):
    """A layer that takes longer where that is asked for."""

    seconds = 0.0

    def forward(self, x):
        if self.seconds:
            time.sleep(self.seconds)
        return super().forward(x)


class Reduced(torch.autograd.Function):
    """The sum over all ranks; its gradient is that of each summand."""

    @staticmethod
    def forward(context, x):
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(context, gradient):
        return gradient


class RowParallel(torch.nn.Module):
    """A linear layer of which each rank holds a part of the inputs."""

    def __init__(self, width):
        super().__init__()
        self.part = torch.nn.Linear(width // dist.get_world_size(), width, bias=False)

    def forward(self, x):
        mine = x.chunk(dist.get_world_size(), dim=-1)[dist.get_rank()]
        return Reduced.apply(self.part(mine))


def model_of(kind, width, device):
    layers = [Layer(width, width), torch.nn.ReLU(), Layer(width, width), torch.nn.ReLU()]
    if kind == "tp":
        return torch.nn.Sequential(*layers, RowParallel(width)).to(device)
    model = torch.nn.Sequential(*layers, Layer(width, width)).to(device)
    if kind == "ddp":
        return DistributedDataParallel(model, bucket_cap_mb=0.3)
    mesh = dist.device_mesh.init_device_mesh(device, (dist.get_world_size(),))
    for layer in model:
        if next(layer.parameters(), None) is not None:
            fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--kind", default="ddp", choices=["ddp", "fsdp", "tp"])
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--width", type=int, default=192)
    parser.add_argument("--slow", default="", choices=["", "layer", "input", "host"])
    parser.add_argument("--seconds", type=float, default=0.04)
    parser.add_argument("--kill-at", type=int, default=-1)
    parser.add_argument("--hang-at", type=int, default=-1)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo" if options.device == "cpu" else "nccl")
    is_slow = dist.get_rank() == 1
    seconds = {options.slow: options.seconds} if is_slow else {}
    model = model_of(options.kind, options.width, options.device)
    for name, layer in model.named_modules():
        if name.endswith("2"):
            layer.seconds = seconds.get("layer", 0.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = Examples(options.steps, options.width, seconds.get("input", 0.0))
    for step, (x,) in enumerate(zip(DataLoader(data, batch_size=None), strict=True)):
        time.sleep(seconds.get("host", 0.0))
        if is_slow and step == options.kill_at:
            os.kill(os.getpid(), 9)
        if is_slow and step == options.hang_at:
            time.sleep(1000)
        x = x.to(options.device)
        loss = torch.nn.functional.mse_loss(model(x), x)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
