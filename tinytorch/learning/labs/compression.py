# %% [markdown] hours="4"
# # Compression: what does a zero save?
#
# A trained network has more weights than it needs. One can set small weights to zero, remove whole
# channels, write a matrix as a product of thin ones, or train a smaller network to do the same. Each is
# called compression. But which one saves memory, which one a download, and which one time?
#
# In this lab you build all four, and weigh what comes out. You check it against the project's own
# transforms, and measure accuracy, bytes held, bytes on disk, and time.
#
# **How to work.** Each step has a place that says `your code goes here`. Write your code, save the
# file, and run
#
# ```console
# $ tinytorch learn check
# ```
#
# in this folder. It runs the checks of all steps; `tinytorch learn check masks` runs those of one.
# Checks use new random cases each time. They run only the imports, functions, classes and constants
# of this file, so the measurements between them may take their time.
#
# The lab is there twice, with the same text: work in the notebook `compression.ipynb` (JupyterLab and
# VS Code open it), or in `compression.py`. Of that file, `python compression.py` shows the measurements down
# to the first place that is still open, where it stops with an error.
#
# You need NumPy: indexing with arrays, axes, and what a singular value decomposition is. You should have
# trained a network once. Expect four hours.

# %%
import copy
import inspect
import os
import zlib
from dataclasses import replace

# One thread: what other programs do on the other cores then disturbs less. It has to be said before
# NumPy is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

from tinytorch import Tensor, compare, load_workload, no_grad
from tinytorch.core.activations import LogSoftmax, ReLU
from tinytorch.core.dataloader import DataLoader, TensorDataset
from tinytorch.core.layers import Linear, Sequential
from tinytorch.core.losses import CrossEntropyLoss
from tinytorch.core.optimizers import Adam
from tinytorch.core.spatial import Conv2d
from tinytorch.learning.exercise import Bars, Outcome, check_prediction
from tinytorch.models.digits import draw_digits
from tinytorch.models.zoo import as_inputs

# %% [markdown]
# ## A first look
#
# How large are the weights of the perceptron that reads digits? Here is the share of them that lies below
# some sizes.

# %%
workload = load_workload("mlp")  # 784-128-64-10, and 5,000 digits to judge it by
mlp = workload.model


def percent_right(model, judge=None):
    """Return the accuracy on the held-out digits, in percent."""
    return 100 * float((judge or workload).evaluate(model).mean())


def linears(model):
    """Return the layers with a weight."""
    return [each for each in model.layers if isinstance(each, (Linear, Conv2d))]


sizes = np.concatenate([np.abs(each.weight.data).ravel() for each in linears(mlp)])
below = {f"below {limit}": 100 * float((sizes < limit).mean()) for limit in (0.01, 0.03, 0.1, 0.2)}
print(Bars(f"{sizes.size:,} weights, the largest {sizes.max():.2f}", below, unit="%"))
print(f"right answers: {percent_right(mlp):.2f}%")

# %% [markdown]
# Many weights are small beside the largest. Are they needed?
#
# ## Predict
#
# Write down what you expect, before you measure. Nobody grades this. Replace every `None`.
#
# - `percent zeros`: how many percent of the weights can be set to zero, the smallest first and without any
#   training, before fewer than 95% of the digits are read right?
# - `percent zeros, trained`: and if the others are trained for two short epochs afterwards?
# - `times as fast`: how many times as fast is the model with 90% of zeros?
# - `times smaller on disk`: how many times smaller is it in a compressed file (as in a ZIP)?

# %%
PREDICTION = {
    ### BEGIN SOLUTION
    #: "percent zeros": None,
    #: "percent zeros, trained": None,
    #: "times as fast": None,
    #: "times smaller on disk": None,
    "percent zeros": 50,
    "percent zeros, trained": 80,
    "times as fast": 3,
    "times smaller on disk": 10,
    ### END SOLUTION
}
check_prediction(PREDICTION)

# %% [markdown] step="masks"
# ## Step 1: The smallest weights
#
# *Magnitude pruning* sets the weights with the smallest absolute values to zero. Pruning is *global* if
# the weights of all layers compete with each other: a layer that matters less loses more.
#
# - `magnitude_masks` takes a list of weights and a sparsity between 0 and 1. It returns a *mask* for each:
#   an array of bool of its shape, True where the weight is kept. Of n weights in all, exactly
#   `round(sparsity * n)` are not, also where many have the same size.
# - `sparsity_of` returns the share of zeros in a list of weights, over all of them together.
#
# *Hint:* a threshold removes too many or too few where sizes are equal. What does `np.argsort` give you
# that a threshold does not?


# %% step="masks"
def magnitude_masks(weights, sparsity):
    """Return the masks of a list of weights: the smallest of all layers together are False."""
    ### BEGIN SOLUTION
    magnitudes = np.concatenate([np.abs(each).ravel() for each in weights])
    kept = np.ones(magnitudes.size, bool)
    kept[np.argsort(magnitudes, kind="stable")[: round(sparsity * magnitudes.size)]] = False
    ends = np.cumsum([each.size for each in weights])[:-1]
    parts = np.split(kept, ends)
    return [part.reshape(each.shape) for part, each in zip(parts, weights, strict=True)]
    ### END SOLUTION


def sparsity_of(weights):
    """Return the share of zeros in a list of weights."""
    ### BEGIN SOLUTION
    zeros = sum(int((each == 0).sum()) for each in weights)
    return zeros / sum(each.size for each in weights)
    ### END SOLUTION


# %%
def pruned(model, sparsity):
    """Return a copy of a model with the smallest weights at zero, and its (parameter, mask) pairs."""
    thin = copy.deepcopy(model)
    parameters = [each.weight for each in linears(thin)]
    masks = magnitude_masks([each.data for each in parameters], sparsity)
    for parameter, kept in zip(parameters, masks, strict=True):
        parameter.data = parameter.data * kept
    return thin, list(zip(parameters, masks, strict=True))


shares = (0.0, 0.3, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98)
at_once = {f"{100 * share:.0f}% zeros": percent_right(pruned(mlp, share)[0]) for share in shares}
print(Bars("Accuracy over sparsity, not trained", at_once, unit="%"))

ninety, pairs = pruned(mlp, 0.9)
by_layer = {
    f"{each.in_features} to {each.out_features}": 100 * sparsity_of([each.weight.data])
    for each in linears(ninety)
}
print(Bars("Zeros by layer, at 90% in all", by_layer, unit="%"))

# %% [markdown] step="recover"
# ## Step 2: Train the rest
#
# Weights that stay can take over from those that are gone, if they are trained. But an optimizer moves
# all weights: zeros have gradients, too, and Adam moves a weight by what it remembers even where the gradient
# is zero. Then the model is dense again after one step. So the mask has to be put on again after **every**
# step, before the next call of the model sees the weights.
#
# Write `train_masked`, one pass over the batches. For each batch: clear the gradients, compute the loss,
# `backward()`, `step()`, and the masks. They are put on before the first batch, too: the model may be given
# without zeros. Return the losses, as floats.
#
# *Hint:* `parameter.data` is an array, and can be assigned.


# %% step="recover"
def train_masked(model, pairs, batches, loss, optimizer):
    """Train for one pass with some weights held at zero; return the loss of each batch.

    `pairs` is a list of (parameter, mask): where the mask is False, the parameter stays zero. `batches`
    gives pairs of inputs and labels.
    """

    ### BEGIN SOLUTION
    def put_on():
        for parameter, kept in pairs:
            parameter.data = parameter.data * kept

    put_on()
    losses = []
    for inputs, labels in batches:
        optimizer.zero_grad()
        error = loss(model(inputs), labels)
        error.backward()
        optimizer.step()
        put_on()
        losses.append(float(error.data))
    return losses
    ### END SOLUTION


# %%
digits, labels = draw_digits(5_000, seed=0)  # training data; the model is judged on other digits
flat = TensorDataset(as_inputs(digits, flat=True), labels)
images = TensorDataset(as_inputs(digits, flat=False), labels)


def trained(model, pairs=(), epochs=2, data=None):
    """Train a model in place and return it."""
    optimizer = Adam(model.parameters(), lr=1e-3)
    model.train()
    for epoch in range(epochs):
        batches = DataLoader(data or flat, batch_size=50, shuffle=True, seed=epoch)
        train_masked(model, pairs, batches, CrossEntropyLoss(), optimizer)
    return model.eval()


after_training = {
    f"{100 * share:.0f}% zeros": percent_right(trained(*pruned(mlp, share)))
    for share in (0.8, 0.9, 0.95, 0.98)
}
print(Bars("Accuracy over sparsity, trained", after_training, unit="%"))
trained(ninety, pairs)
print(f"zeros after training: {100 * sparsity_of([p.data for p, _ in pairs]):.1f}%")

# %% [markdown] step="shrink"
# ## Step 3: Remove channels
#
# A zero is a number like any other: it takes four bytes, and a dense product multiplies with it. To have
# smaller arrays, whole rows or columns have to go. *Structured* pruning removes neurons, or channels of a
# convolution, **with everything that depends on them**: the channel's weights and its bias, and the weights
# of the next layer that would have been multiplied with it.
#
# The zoo's cnn is Conv2d, ReLU, MaxPool2d, Conv2d, ReLU, MaxPool2d, Flatten, Linear. A weight of a Conv2d is
# (outputs, inputs, height, width), that of a Linear (inputs, outputs). `Flatten` lays out a channel after
# the other: 32 channels of 7 x 7 become 1,568 inputs of the Linear, and the first 49 belong to channel 0.
#
# - `strongest` chooses the `count` outputs of a layer whose weights have the largest norm (root of the sum of
#   squares), in ascending order of their numbers.
# - `shrink` returns a new, smaller `Sequential`. `keep` maps the place of a layer to the outputs that it
#   keeps; those of other layers all stay. The given model must not change.
#
# `made_like` below makes a layer from arrays, so you need not.
#
# *Hint:* go through the layers, and remember which outputs of the last one with weights are left, and how
# many there were. If the next layer has k times as many inputs as there were outputs, each channel has k
# of them.


# %% step="shrink"
def made_like(layer, weight, bias):
    """Return a new layer of the same kind with these arrays; its sizes are theirs."""
    if isinstance(layer, Linear):
        made = Linear(*weight.shape, rng=0)
    else:
        settings = {"stride": layer.stride, "padding": layer.padding}
        made = Conv2d(weight.shape[1], weight.shape[0], weight.shape[2:], rng=0, **settings)
    made.weight.data, made.bias.data = weight.copy(), bias.copy()
    return made


def strongest(layer, count):
    """Return the numbers of the `count` outputs with the largest weights, ascending."""
    ### BEGIN SOLUTION
    axes = 0 if isinstance(layer, Linear) else (1, 2, 3)
    norms = np.sqrt((layer.weight.data**2).sum(axis=axes))
    return np.sort(np.argsort(norms)[len(norms) - count :])
    ### END SOLUTION


def shrink(model, keep):
    """Return a smaller Sequential; `keep` maps places of layers to the outputs that they keep."""
    ### BEGIN SOLUTION
    layers, left, count = [], None, 0  # the outputs of the layer before that are left, of `count`
    for place, layer in enumerate(model.layers):
        if not isinstance(layer, (Linear, Conv2d)):
            layers.append(copy.deepcopy(layer))
            continue
        ins, outs = (0, 1) if isinstance(layer, Linear) else (1, 0)
        weight, bias = layer.weight.data, layer.bias.data
        if left is not None:
            each = weight.shape[ins] // count
            inputs = (left[:, None] * each + np.arange(each)).ravel()
            weight = weight.take(inputs, axis=ins)
        count = weight.shape[outs]
        left = None if place not in keep else np.asarray(keep[place])
        if left is not None:
            weight, bias = weight.take(left, axis=outs), bias[left]
        layers.append(made_like(layer, weight, bias))
    return Sequential(*layers)
    ### END SOLUTION


# %%
cnn_workload = load_workload("cnn")
cnn = cnn_workload.model


def half_of(model):
    """Return a model with half of the channels or neurons of each layer but the last."""
    places = [n for n, each in enumerate(model.layers) if isinstance(each, (Linear, Conv2d))]
    outputs = {n: len(model.layers[n].bias.data) for n in places[:-1]}
    return shrink(model, {n: strongest(model.layers[n], outputs[n] // 2) for n in outputs})


half_mlp, half_cnn = half_of(mlp), half_of(cnn)
print(half_cnn)
channels = {
    "mlp": percent_right(mlp),
    "half of its neurons": percent_right(half_mlp),
    "and trained": percent_right(trained(half_mlp)),
    "cnn": percent_right(cnn, cnn_workload),
    "half of its channels": percent_right(half_cnn, cnn_workload),
    "and trained, too": percent_right(trained(half_cnn, epochs=1, data=images), cnn_workload),
}
print(Bars("Accuracy with fewer channels", channels, unit="%"))

# %% [markdown] step="factors"
# ## Step 4: Low rank
#
# A matrix (m, n) of *rank* r is a product of (m, r) and (r, n). The best approximation of a matrix by one of
# rank r takes its r largest singular values (Eckart and Young, 1936): with w = u · diag(s) · v, keep r
# columns of u, r values of s, r rows of v. What is lost is the root of the sum of squares of the other
# singular values.
#
# It pays only if r·(m + n) numbers are fewer than m·n.
#
# - `factor` returns the two matrices whose product is the best approximation. Where the singular values go
#   is up to you; they have to be in there once.
# - `largest_rank` returns the largest rank that takes fewer numbers than the matrix itself, or 0.
# - `rank_for` returns the smallest rank whose relative error is at most `error`: the norm of the
#   difference over the norm of the matrix.
#
# *Hint:* for a square matrix of side n, r·2n < n² says r < n/2. Is n/2 itself one that pays?


# %% step="factors"
def factor(weight, rank):
    """Return arrays (inputs, rank) and (rank, outputs) whose product is nearest to a weight."""
    ### BEGIN SOLUTION
    left, values, right = np.linalg.svd(weight, full_matrices=False)
    return left[:, :rank] * values[:rank], right[:rank]
    ### END SOLUTION


def largest_rank(inputs, outputs):
    """Return the largest rank with fewer numbers than inputs * outputs, or 0."""
    ### BEGIN SOLUTION
    return (inputs * outputs - 1) // (inputs + outputs)
    ### END SOLUTION


def rank_for(weight, error):
    """Return the smallest rank whose relative error is at most `error`."""
    ### BEGIN SOLUTION
    squares = np.linalg.svd(weight, compute_uv=False).astype(np.float64) ** 2
    lost = np.append(np.cumsum(squares[::-1])[::-1], 0)  # at rank 0, 1, ...
    return int(np.argmax(lost <= error**2 * lost[0]))
    ### END SOLUTION


# %%
def low_rank(model, error):
    """Return a model with two thin layers in the place of each one where that pays."""
    layers = []
    for layer in model.layers:
        rank = rank_for(layer.weight.data, error) if isinstance(layer, Linear) else 0
        if not isinstance(layer, Linear) or rank > largest_rank(*layer.weight.shape):
            layers.append(copy.deepcopy(layer))
            continue
        first, second = factor(layer.weight.data, rank)
        layers.append(made_like(layer, first, np.zeros(rank, np.float32)))
        layers.append(made_like(layer, second, layer.bias.data))
    return Sequential(*layers)


for layer in linears(mlp):
    pays, needed = largest_rank(*layer.weight.shape), rank_for(layer.weight.data, 0.2)
    print(f"{layer}: up to rank {pays} it pays; for an error of 20% it needs rank {needed}")
ranks = {f"error {error:.0%}": low_rank(mlp, error) for error in (0.3, 0.5, 0.7)}
print(Bars("Accuracy with low rank", {name: percent_right(m) for name, m in ranks.items()}, "%"))

# %% [markdown] step="distill"
# ## Step 5: A student
#
# Or train a small network from scratch, and let a large one help. A label says which digit it is. A *teacher*
# says more: that this 4 looks a little like a 9. To make that visible, logits are divided by a *temperature*
# T above 1 before the softmax. The loss of the student has two parts (Hinton, Vinyals and Dean, 2015):
#
#     alpha · T² · KL(teacher || student)  +  (1 - alpha) · cross entropy with the labels
#
# KL is the mean over the rows of Σ p · (log p - log q), where p is what the teacher says and q what the
# student says, both softened by T. The cross entropy is that of the plain logits. Gradients of the softened
# part shrink with 1/T², which the factor makes good: so alpha means the same at every temperature.
#
# - `log_softened` returns the logarithm of the softmax of an array of logits over T, for each row. Like any
#   softmax, it has to work for logits of 10,000, too.
# - `distillation_loss` returns the loss, a Tensor that `backward()` can be called on. `student` is a Tensor
#   of logits (rows, classes) with a graph, `teacher` an array of logits, `labels` whole numbers.
#
# Of the framework you may use `LogSoftmax()` and `CrossEntropyLoss()`; tensors can be added, multiplied and
# summed up.
#
# *Hint:* p log p - p log q has a term without the student. Is it zero? Does it matter for the gradient, and
# for the value?


# %% step="distill"
def log_softened(logits, temperature):
    """Return the logarithms of what each class gets (rows, classes), at a temperature; an array."""
    ### BEGIN SOLUTION
    scaled = logits / temperature
    scaled = scaled - scaled.max(axis=-1, keepdims=True)
    return scaled - np.log(np.exp(scaled).sum(axis=-1, keepdims=True))
    ### END SOLUTION


def distillation_loss(student, teacher, labels, temperature=3.0, alpha=0.7):
    """Return alpha * T**2 * KL(teacher || student) + (1 - alpha) * cross entropy, a Tensor."""
    ### BEGIN SOLUTION
    log_p = log_softened(teacher, temperature)
    log_q = LogSoftmax()(student * (1 / temperature))
    divergence = (Tensor(np.exp(log_p)) * (Tensor(log_p) - log_q)).sum() * (1 / len(teacher))
    plain = CrossEntropyLoss()(student, labels)
    return divergence * (alpha * temperature**2) + plain * (1 - alpha)
    ### END SOLUTION


# %% [markdown]
# Does the teacher help? The same small network, trained on the same 1,000 digits, with the labels alone and with
# a teacher. One run proves nothing (another seed moves the result by half a point), so there are three.


# %%
def student_of(seed, *, alpha, epochs=12, count=1000):
    """Train a network of 16 neurons and return it."""
    small = Sequential(Linear(784, 16, rng=seed), ReLU(), Linear(16, 10, rng=seed))
    optimizer = Adam(small.parameters(), lr=3e-3)
    few = TensorDataset(flat[:count][0].data, labels[:count])
    for epoch in range(epochs):
        for x, y in DataLoader(few, batch_size=50, shuffle=True, seed=epoch):
            with no_grad():
                said = mlp(x).data
            optimizer.zero_grad()
            distillation_loss(small(x), said, y, alpha=alpha).backward()
            optimizer.step()
    return small.eval()


students = {
    f"seed {seed}, {'a teacher' if alpha else 'labels alone'}": student_of(seed, alpha=alpha)
    for seed in (1, 2, 3)
    for alpha in (0.0, 0.9)
}
students_right = {name: percent_right(each) for name, each in students.items()}
print(Bars("Accuracy of 16 neurons, 1,000 digits", students_right, unit="%"))

# %% [markdown] step="weigh"
# ## Step 6: What does it weigh?
#
# Zeros can save something, if they are not stored. Here are three ways to write a weight down:
#
# - a *bitmap*: one bit per weight says whether it is zero (in whole bytes), and the others follow, 4 bytes
#   each;
# - *sparse rows* (CSR): for each row, the values that are not zero, and for each of them its column, 2 bytes.
#   `starts` says where in these lists each row begins, and one more entry where the last one ends; 4 bytes
#   each;
# - *deflate*, which is what ZIP files use: `zlib.compress(data, 9)` for the bytes of the array.
#
# Write `to_sparse` and `from_sparse`, there and back without losing a bit, and `sizes_of`, which says how many
# bytes each of the forms takes.
#
# *Hint:* `np.nonzero` goes through a matrix row by row. How many entries has `starts` for 3 rows?


# %% step="weigh"
def to_sparse(weight):
    """Return values (float32), columns (uint16) and starts (int32) of a matrix of float32."""
    ### BEGIN SOLUTION
    rows, columns = np.nonzero(weight)
    counts = np.bincount(rows, minlength=len(weight))
    starts = np.append(0, np.cumsum(counts)).astype(np.int32)
    return weight[rows, columns], columns.astype(np.uint16), starts
    ### END SOLUTION


def from_sparse(values, columns, starts, shape):
    """Return the matrix, float32, that `to_sparse` was given."""
    ### BEGIN SOLUTION
    weight = np.zeros(shape, np.float32)
    rows = np.repeat(np.arange(shape[0]), np.diff(starts))
    weight[rows, columns] = values
    return weight
    ### END SOLUTION


def sizes_of(weight):
    """Return the bytes of a matrix of float32: `dense`, `bitmap`, `sparse` and `deflated`."""
    ### BEGIN SOLUTION
    kept = int(np.count_nonzero(weight))
    return {
        "dense": weight.nbytes,
        "bitmap": (weight.size + 7) // 8 + 4 * kept,
        "sparse": sum(each.nbytes for each in to_sparse(weight)),
        "deflated": len(zlib.compress(weight.tobytes(), 9)),
    }
    ### END SOLUTION


# %%
for share in (0.0, 0.3, 0.5, 0.9):
    thin, _ = pruned(mlp, share)
    weighed = sizes_of(thin.layers[0].weight.data)
    print(Bars(f"{share:.0%} zeros, KiB", {name: size / 1024 for name, size in weighed.items()}))

# %% [markdown]
# ## Yours against the real ones
#
# First: are they right? Each of the project's transforms beside yours.

# %%
from tinytorch.transforms.compressed_file import save_compressed
from tinytorch.transforms.distillation import KnowledgeDistillation
from tinytorch.transforms.low_rank import low_rank_approximate
from tinytorch.transforms.prune import Masks, Prune
from tinytorch.transforms.remove_channels import RemoveChannels
from tinytorch.transforms.sparse_layers import SparseLayers, SparseLinear


def by_project(transform, judge=None):
    """Return what a transform of the project makes of a workload's model."""
    judge = judge or workload
    return transform.apply(judge, transform.plan(judge))


real_masks = list(Masks.of(by_project(Prune(sparsity=0.9))).kept.values())
other = sum(int((one != two[1]).sum()) for one, two in zip(real_masks, pairs, strict=True))
print(f"masks at 90%: {other} of {sizes.size:,} weights are decided otherwise")

some = cnn_workload.calibration[0][0]
kept = {0: strongest(cnn.layers[0], 8), 3: strongest(cnn.layers[3], 16)}
zeroed = copy.deepcopy(cnn)
for place, outputs in kept.items():
    gone = np.setdiff1d(np.arange(len(zeroed.layers[place].bias.data)), outputs)
    zeroed.layers[place].weight.data[gone], zeroed.layers[place].bias.data[gone] = 0, 0
with no_grad():
    apart = np.abs(shrink(cnn, kept)(some).data - zeroed(some).data).max()
print(f"channels removed or at zero: outputs differ by {apart:.1e}")
print("the project's half:", by_project(RemoveChannels(ratio=0.5), cnn_workload).layers[-1])

weight = mlp.layers[0].weight.data
u, s, v = low_rank_approximate(weight, rank_ratio=0.25)
first, second = factor(weight, len(s))
print(f"rank {len(s)}: products differ by {np.abs(first @ second - u * s @ v).max():.1e}")

said, wanted = (np.random.default_rng(n).standard_normal((8, 10)) for n in (1, 2))
real_loss = KnowledgeDistillation(mlp, half_mlp, 3.0, 0.7).distillation_loss
answers = np.arange(8)
values = [
    float(each(Tensor(said), wanted, answers).data) for each in (distillation_loss, real_loss)
]
print(f"distillation: your loss {values[0]:.6f}, the project's {values[1]:.6f}")

on_disk = {name: sum(sizes_of(p.data)[name] for p, _ in pairs) for name in sizes_of(weight)}
written = save_compressed("pruned.weights", ninety)
print(f"90% zeros: dense {on_disk['dense']:,} bytes, deflated {on_disk['deflated']:,},")
print(f"a file of the project {written:,}")

# %% [markdown]
# Then the times, by the project's comparer: 64 digits at once, the model as it ships against one with 90% of
# zeros, and against one with half of the neurons.

# %%
batch = Tensor(flat[:64][0].data)
many = replace(workload, inputs=(batch,))


def against(model, what):
    """Compare the model as it ships with another one."""
    candidate = replace(many, model=model)
    return compare(many, candidate, margin=0.01, budget_s=2.0, names=("mlp", what))


with_zeros, with_half = against(ninety, "90% zeros"), against(half_mlp, "half the neurons")
print(with_zeros)
print(with_half)

# %% [markdown]
# A product that leaves out the zeros has to look up where the others are. That takes longer per number, so it
# pays only where few are left. `SparseLinear` of the project is such a product; here it meets the dense one
# of the first layer, at several sparsities.

# %%
for share in (0.5, 0.9, 0.98):
    layer = pruned(mlp, share)[0].layers[0]
    sparse = SparseLinear.of(layer)

    def dense_product(layer=layer):
        with no_grad():
            return layer(batch)

    def sparse_product(sparse=sparse):
        with no_grad():
            return sparse(batch)

    names = (f"dense, {share:.0%} zeros", "sparse")
    print(compare(dense_product, sparse_product, budget_s=1.0, names=names))

# %% [markdown]
# Where the real code lives:

# %%
for real in (Prune, RemoveChannels, low_rank_approximate, KnowledgeDistillation, SparseLinear):
    _, line = inspect.getsourcelines(real)
    print(f"{real.__name__:22} {inspect.getsourcefile(real)}:{line}")

# %% [markdown]
# ## The question
#
# What is saved by what: memory, disk, time? Here are five small models, all measured against the one that
# ships. Bytes held are those of the arrays of the model, bytes on disk those of all its arrays deflated.


# %%
def deflated_bytes(model):
    """Return the bytes of all arrays of a model after deflate."""
    held = [each for layer in model.layers for each in vars(layer).values()]
    arrays = [each.data for each in held if isinstance(each, Tensor)]
    return sum(len(zlib.compress(each.tobytes(), 9)) for each in arrays)


sparse_plan = replace(many, model=ninety)
small_models = {
    "90% zeros": ninety,
    "90% zeros, sparse": by_project(SparseLayers(goal="memory"), sparse_plan),
    "half the neurons": half_mlp,
    "low rank, trained": trained(low_rank(mlp, 0.5)),
    "a student of 16": students["seed 1, a teacher"],
}
print(f"{'':20}{'accuracy':>10}{'held, KiB':>11}{'disk, KiB':>11}   time")
held_kib = with_zeros.resources[0].parameter_bytes / 1024
print(
    f"{'as it ships':20}{percent_right(mlp):9.2f}%{held_kib:11.0f}{deflated_bytes(mlp) / 1024:11.0f}"
)
for name, model in small_models.items():
    found = against(model, name)
    low, high = found.time_ratio_low, found.time_ratio_high
    print(
        f"{name:20}{percent_right(model):9.2f}%{found.resources[1].parameter_bytes / 1024:11.0f}"
        f"{deflated_bytes(model) / 1024:11.0f}   {found.time_ratio:.2f} ({low:.2f} to {high:.2f})"
    )

# %% [markdown]
# ## Your prediction
#
# Here is what you wrote beside what you measured.


# %%
def most_zeros(accuracies):
    """Return the largest percentage of zeros with at least 95% of right answers."""
    return max(int(name.partition("%")[0]) for name, right in accuracies.items() if right >= 95)


measured = {
    "percent zeros": most_zeros(at_once),
    "percent zeros, trained": most_zeros(after_training),
    "times as fast": with_zeros.speedup,
    "times smaller on disk": on_disk["dense"] / on_disk["deflated"],
}
print(Outcome(PREDICTION, measured))

# %% [markdown]
# ## Reflection
#
# Answer in your own words, in a few sentences each:
#
# 1. Why do 90% of zeros save no time, and what would have to change so that they do? What did the sparse
#    product of the project need?
# 2. The bitmap and the sparse rows take different bytes. From which sparsity on is each smaller than the dense
#    array? (Use 4 bytes per value, 2 per column.) Which one is smaller when?
# 3. You may remove 90% of single weights, but only half of the neurons, at about the same accuracy. Which one
#    would you take for a phone, and which one for a download?
# 4. The student learns from the teacher's mistakes, too. Why may it still be better than with labels alone?
#    What would you have to measure to claim that it is?
#
# `tinytorch learn solution reflection` shows a model answer, once all steps have passed.

# %% [markdown] answer="reflection"
# 1. A dense product reads and multiplies every number; that one of them is zero saves nothing, and a test for it
#    would cost more than the product. Either the zeros are not there (smaller dense arrays, or a format that
#    leaves them out), or the hardware knows their pattern. The sparse product has to read a place with each
#    value and reaches its inputs in jumps, so a number costs it several times as much; the comparison says from
#    which share of zeros on it is faster.
# 2. The bitmap costs an eighth of a byte per weight and saves 4 for each zero: it is smaller from 1/32, some 3%
#    of zeros on. Sparse rows take 6 bytes for each value that is left: they are smaller than dense from one third
#    of zeros on. Sparse rows beat the bitmap when 2 bytes for each value are less than an eighth of a byte for
#    each weight: with more than 94% of zeros.
# 3. On the phone, fewer neurons: smaller dense arrays take less memory and less time with any kernel. For the
#    download, single weights: only a file profits from zeros, and more of them can go. Both together work, too:
#    remove channels, and prune what is left for the file.
# 4. A label says one of ten; the teacher says how alike the digits are, which is more information per example,
#    and it matters most where examples are few. That the teacher errs in 2% of them weighs little against that.
#    One pair of runs shows nothing, as the order of the examples and the first weights move the result: I would
#    train both with many seeds, and look at the differences with an interval, on digits that neither has seen.

# %% [markdown]
# ## You are done when
#
# - `tinytorch learn check` says that all steps passed;
# - your masks, products and losses are those of the project, and a model without channels computes what one
#   with zeros in their place does;
# - the comparer finds the model with 90% of zeros *the same* (or nearly so) in time, and the one with half of
#   the neurons faster, and you know why;
# - you can say for each of the five small models what it saves: memory, disk, time;
# - you have answered the four questions above.
