"""Two configurations of DDP in turns, to be run by torchrun: rank 0 prints the comparison."""

import json
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from tinytorch.scale.compare_torch import compare_ranks


def configured(bucket_mb, seconds):
    def build():
        torch.manual_seed(0)
        layers = [torch.nn.Linear(64, 64) for _ in range(3)]
        model = DistributedDataParallel(torch.nn.Sequential(*layers), bucket_cap_mb=bucket_mb)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        x = torch.ones(8, 64)

        def step():
            time.sleep(seconds)
            model(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

        return step

    return build


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    slow = 0.04 * dist.get_rank()  # Rank 0, which takes the times, has to wait for the other one.
    names = ("small buckets", "one bucket")
    found = compare_ranks(configured(0.01, 0.0), configured(25, slow), budget_s=3, names=names)
    everywhere = [None] * dist.get_world_size()
    dist.all_gather_object(everywhere, found.verdict)
    if dist.get_rank() == 0:
        print(json.dumps({"everywhere": everywhere, "result": found.to_dict()}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
