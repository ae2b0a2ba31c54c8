import pytest
from parts import require_part

torch = require_part("torch")
from torch import nn
from torch_workloads import bits_of, is_unchanged, seeded, workload

from tinytorch.errors import DivergenceError, SettingError
from tinytorch.transforms.prune import Masks, Prune
from tinytorch.transforms.support.training import CubicSchedule, fine_tune


def batches(count=20, *, useless=False):
    """Points of the plane, by the quadrant that they are in."""
    generator = torch.Generator().manual_seed(0)
    points = torch.randn(count, 32, 2, generator=generator)
    labels = (points[..., 0] > 0).long() + 2 * (points[..., 1] > 0).long()
    if useless:
        labels = torch.zeros_like(labels)
    return list(zip(points, labels, strict=True))


@pytest.fixture(scope="module")
def trained():
    model = seeded(lambda: nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 4)))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(5):
        for x, y in batches():
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
    return workload(model, 1, 2)


def accuracy(model):
    with torch.no_grad():
        return sum(float((model(x).argmax(1) == y).float().mean()) for x, y in batches(5)) / 5


@pytest.mark.parametrize("schedule", [None, CubicSchedule(40, every=5)])
@pytest.mark.parametrize(
    "optimizer",
    [
        None,
        lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, weight_decay=0.1),
        lambda p: torch.optim.AdamW(p, lr=0.01),
    ],
)
def test_the_plan_is_met_and_the_model_stays_as_it_was(trained, schedule, optimizer):
    before = bits_of(trained.model)
    transform = Prune(0.85)
    tuned = fine_tune(
        trained, batches(), transform, epochs=3, schedule=schedule, optimizer=optimizer
    )
    zeros = {name: int((~kept).sum()) for name, kept in Masks.of(tuned).kept.items()}
    plan = transform.plan(trained)
    assert zeros == {step.settings["weight"]: step.settings["zeros"] for step in plan.steps}
    assert is_unchanged(trained.model, before)
    assert not tuned.training
    assert all(each.grad is None for each in tuned.parameters())


@pytest.mark.slow
@pytest.mark.parametrize("schedule", [None, CubicSchedule(40, every=5)])
def test_training_wins_back_what_pruning_lost(trained, schedule):
    transform = Prune(0.8)
    plain = transform.apply(trained, transform.plan(trained))
    tuned = fine_tune(trained, batches(), transform, epochs=20, schedule=schedule)
    assert accuracy(trained.model) > 0.9
    assert accuracy(plain) < 0.7
    assert accuracy(tuned) > accuracy(plain) + 0.1


def test_a_teacher_is_learned_from(trained):
    settings = {"epochs": 4, "optimizer": lambda p: torch.optim.Adam(p, lr=0.02)}
    useless = batches(useless=True)
    taught = fine_tune(trained, useless, Prune(0.5), teacher=trained.model, **settings)
    untaught = fine_tune(trained, useless, Prune(0.5), **settings)
    assert accuracy(taught) > accuracy(untaught) + 0.2


def test_settings_reach_the_training(trained):
    seen, rates = [], []

    def rate(step):
        rates.append(step)
        return 1e-3

    fine_tune(
        trained, batches(4), Prune(0.5), epochs=2, clip_norm=0.1, lr_schedule=rate,
        loss=nn.CrossEntropyLoss(label_smoothing=0.1),
        on_step=lambda done, total, loss: seen.append((done, total)),
    )  # fmt: skip
    assert seen == [(number, 8) for number in range(1, 9)]
    assert rates == list(range(8))


def test_what_cannot_be_trained_says_so(trained):
    with pytest.raises(SettingError, match="training needs batches, got 0"):
        fine_tune(trained, [], Prune(0.5))
    with pytest.raises(SettingError, match=r"batches of \(inputs, targets\).*got Tensor"):
        fine_tune(trained, [torch.zeros(3, 2)], Prune(0.5))
    nan = [(torch.full((3, 2), float("nan")), torch.zeros(3, dtype=torch.long))]
    with pytest.raises(DivergenceError, match="the loss is nan at step 0"):
        fine_tune(trained, nan, Prune(0.5))
    with pytest.raises(SettingError, match="after the 1 steps"):
        fine_tune(trained, nan, Prune(0.5), schedule=CubicSchedule(10))
