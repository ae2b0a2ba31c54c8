# %% [markdown] hours="4"
# # Benchmarking: is B really faster than A?
#
# Somebody changes a line, runs both versions, and says "7% faster". Half of such claims are noise. In
# this lab you build a benchmark that can be believed: turns that are long enough, an interval around
# every number, two versions that take turns, and a verdict that may be *inconclusive*. You measure how
# often each way of benchmarking claims a difference that does not exist. At the end you enter your own
# version of a model into the competition.
#
# **How to work.** Each step has a place that says `your code goes here`. Write your code, save the
# file, and run
#
# ```console
# $ tinytorch learn check
# ```
#
# in this folder. It runs the checks of all steps; `tinytorch learn check pairs` runs those of one.
# Checks use new random cases each time. They run only the imports, functions, classes and constants
# of this file, so the measurements between them may take their time.
#
# The lab is there twice, with the same text: work in the notebook `benchmarking.ipynb` (JupyterLab and
# VS Code open it), or in `benchmarking.py`. Of that file, `python benchmarking.py` shows the measurements down
# to the first place that is still open, where it stops with an error.
#
# You need Python, NumPy, and to know what a median, a percentile and a probability are. Expect four hours.

# %%
import inspect
import math
import os
import time

# One thread: what other programs do on the other cores then disturbs less. It has to be said before
# NumPy is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

from tinytorch import compare, load_workload, no_grad
from tinytorch.learning.exercise import Bars, Growth, Histogram, Outcome, check_prediction
from tinytorch.perf.benchmarking import TinyMLPerfCompetition

# %% [markdown]
# ## A first look
#
# The zoo has a small network that reads digits: three layers. Here it is, compared with *itself*, as
# most people would do it: all calls of A, then all calls of B, and the ratio of the means. Five times.

# %%
workload = load_workload("mlp")
mlp, (digits,) = workload.model.eval(), workload.inputs


def layers():
    """Run the network of the zoo on its example, layer by layer."""
    with no_grad():
        return mlp(digits).data


def mean_s(func, calls=200):
    """Return the mean time of some calls, in seconds."""
    start = time.perf_counter()
    for _ in range(calls):
        func()
    return (time.perf_counter() - start) / calls


layers()
ratios = {f"try {n}": 100 * (mean_s(layers) / mean_s(layers) - 1) for n in range(1, 6)}
for name, percent in ratios.items():
    print(f"{name}: B takes {percent:+.1f}% of A's time more")

# %% [markdown]
# A and B are the same function. Which of these percentages would you have believed?
#
# ## Predict
#
# Write down what you expect, before you measure. Nobody grades this. Replace every `None`.
#
# - `alarms, A then B`: on a machine whose speed wanders by 1% from one turn to the next, a function is
#   compared with itself 100 times, all of A and then all of B. How many of these comparisons claim a
#   difference, if each uses a correct interval of 95%?
# - `alarms, in turns`: and if A and B take turns?
# - `alarms, peeking`: and if somebody looks at the interval ten times while the measurement goes on, and
#   stops as soon as there is a difference?
# - `slow pages, %`: a page needs 50 calls. How many percent of pages have a call slower than the p99?
# - `rounds for half`: how many times as many rounds does it take to make an interval half as wide?
# - `plain is faster`: how many times faster is the network if its three products are written directly in
#   NumPy, without layers around them?

# %%
PREDICTION = {
    ### BEGIN SOLUTION
    #: "alarms, A then B": None,
    #: "alarms, in turns": None,
    #: "alarms, peeking": None,
    #: "slow pages, %": None,
    #: "rounds for half": None,
    #: "plain is faster": None,
    "alarms, A then B": 5,
    "alarms, in turns": 5,
    "alarms, peeking": 5,
    "slow pages, %": 1,
    "rounds for half": 2,
    "plain is faster": 1.2,
    ### END SOLUTION
}
check_prediction(PREDICTION)

# %% [markdown] step="turns"
# ## Step 1: Turns
#
# Reading a clock takes about 50 ns, and a clock has a smallest step. A call of a microsecond cannot be
# timed alone, so time a *turn*: `loops` calls between two readings.
#
# Write two functions:
#
# - `time_turn` calls `func` `loops` times between two readings of the clock and returns the seconds **per
#   call**;
# - `calibrate` returns how many loops a turn needs to take at least `turn_s`. Try 1, 2, 4, 8, ... and take
#   the first that is enough. These calls warm up everything, too. But the very first call of all is not
#   like the others (code is compiled or loaded, memory is allocated), so make it before you time anything.
#
# *Hint:* a turn is long enough or not as a whole. What does `time_turn` return?


# %% step="turns"
def time_turn(func, loops, clock=time.perf_counter):
    """Call `func` `loops` times between two readings of the clock; return the seconds per call."""
    ### BEGIN SOLUTION
    start = clock()
    for _ in range(loops):
        func()
    return (clock() - start) / loops
    ### END SOLUTION


def calibrate(func, turn_s=1e-3, clock=time.perf_counter):
    """Warm up; return the first of 1, 2, 4, 8, ... loops that take at least `turn_s` together."""
    ### BEGIN SOLUTION
    func()
    loops = 1
    while loops * time_turn(func, loops, clock) < turn_s:
        loops *= 2
    return loops
    ### END SOLUTION


# %%
loops = calibrate(layers)
print(f"a turn of a millisecond has {loops} calls")
for count in (1, loops):
    turns = [1e6 * time_turn(layers, count) for _ in range(200)]
    spread = np.percentile(turns, 90) / np.percentile(turns, 10)
    print(f"{count:3} calls per turn: median {np.median(turns):.1f} µs, p90 over p10 {spread:.2f}")

# %% [markdown] step="interval"
# ## Step 2: A median with its interval
#
# Measured times are not bell-shaped: nothing makes a call much faster, and much makes it slower. So sum
# them up by the median. How well is it known? There is an answer without any assumption on the shape.
# Each value lies below the *true* median with probability one half, so the number of values below it
# is as if you had thrown n coins.
#
# Sort the values and leave out k at each end. The interval from the smallest to the largest of the
# rest misses the true median only if at most k coins show heads, or at most k tails. So its coverage is
#
#     1 - 2 · P(at most k heads of n)        with P(exactly i heads) = C(n, i) / 2**n
#
# Write `median_interval`: take the largest k whose coverage is at least what is asked for. If not even
# k = 0 has it, there are too few values: raise a `ValueError` that says so.
#
# *Hint:* `math.comb(n, i)`. For n = 10 and 95%, k is 1: the interval goes from the second value to the
# second last. Check this on paper.


# %% step="interval"
def median_interval(values, coverage=0.95):
    """Return (low, median, high): the median of some values and an interval for the true one."""
    ### BEGIN SOLUTION
    ordered, n = sorted(values), len(values)
    k, outside = -1, 0.0
    for count in range(n // 2):
        outside += 2 * math.comb(n, count) / 2**n
        if 1 - outside < coverage:
            break
        k = count
    if k < 0:
        raise ValueError(f"{n} values are too few for a coverage of {coverage:.0%}")
    return float(ordered[k]), float(np.median(ordered)), float(ordered[n - 1 - k])
    ### END SOLUTION


# %% [markdown]
# Does it hold? Draw values whose true median is known, many times, and count. And compare with the
# formula of the textbook, mean ± 1.96 · s / √n, which is about the mean, and assumes a bell.

# %%
rng = np.random.default_rng(0)
inside, bells = 0, 0
for _ in range(1000):
    drawn = 1 + rng.pareto(1.5, 20)  # like times: a sharp lower end, a long upper one
    low, _, high = median_interval(drawn)
    inside += low <= 2 ** (1 / 1.5) <= high
    half = 1.96 * drawn.std(ddof=1) / math.sqrt(20)
    bells += abs(drawn.mean() - 3.0) <= half
print(f"the interval of the median holds the true median {inside / 10:.1f}% of the time,")
print(f"mean ± 1.96 s/√n holds the true mean {bells / 10:.1f}% of the time; both promise 95%")

# %% [markdown] step="tail"
# ## Step 3: The tail
#
# A median says what a typical call takes. Users do not make one call: a page needs many, and waits for
# the slowest. So what happens to one call in a hundred happens to nearly everybody.
#
# Write three functions:
#
# - `chance_of_slow`: the chance that at least one of `requests` independent calls is slower than the
#   q-th percentile;
# - `calls_for`: how many calls have to be measured, at least, so that `beyond` of them are expected to lie
#   beyond the q-th percentile. With fewer, a p99 is about the luck of one or two calls;
# - `page_times`: simulate `pages` pages. Each makes `requests` calls, whose times are drawn from `values`
#   (any of them may be drawn again), and takes as long as the slowest of them. Draw with `rng`.
#
# *Hint:* `rng.choice(values, (rows, columns))` draws a whole table. And what is `1 - 0.9` in Python?


# %% step="tail"
def chance_of_slow(q, requests):
    """Return the chance that the slowest of some calls is beyond the q-th percentile of calls."""
    ### BEGIN SOLUTION
    return 1 - (q / 100) ** requests
    ### END SOLUTION


def calls_for(q, beyond=10):
    """Return the fewest calls of which `beyond` are expected beyond the q-th percentile."""
    ### BEGIN SOLUTION
    return math.ceil(round(100 * beyond / (100 - q), 6))
    ### END SOLUTION


def page_times(values, requests, pages, rng):
    """Return an array of `pages` times, each of the slowest of `requests` calls drawn from values."""
    ### BEGIN SOLUTION
    return rng.choice(np.asarray(values), (pages, requests)).max(axis=1)
    ### END SOLUTION


# %% [markdown]
# Here are the times of real calls, one by one, enough for a p99. Where does the mean stand?

# %%
calls_us = [1e6 * time_turn(layers, 1) for _ in range(3 * calls_for(99))]
marks = {"mean": float(np.mean(calls_us))}
marks |= {f"p{q}": float(np.percentile(calls_us, q)) for q in (50, 90, 99)}
print(Histogram(f"{len(calls_us):,} calls of the network", calls_us, marks, unit="µs"))
print(f"the slowest took {max(calls_us):.0f} µs")
pages = {
    f"calls: {n}": float(np.median(page_times(calls_us, n, 2000, rng))) for n in (1, 10, 50, 200)
}
print(Bars("The median page that needs ...", pages, "µs"))

# %% [markdown] step="pairs"
# ## Step 4: Take turns
#
# A processor gets warm and slows down, another program starts, a laptop goes on battery. If all of A runs
# before all of B, the one that was luckier wins. If they take turns, what lasts longer than a turn
# meets both. The order within each round has to be random: otherwise whatever comes second finds
# caches that the first has filled, or emptied, each time.
#
# Write `interleaved`. First call each side once, without timing it. Then each round times one turn of
# both, with `time_turn`, in an order that `rng` decides anew. Return two lists, of A and of B: value
# i of both is of round i.
#
# *Hint:* `rng.random() < 0.5` decides. What do the lists look like, if B happened to be first?


# %% step="pairs"
def interleaved(a, b, rounds, rng, loops=1, clock=time.perf_counter):
    """Time both sides in turns, in random order; return the seconds per call of each, by round."""
    ### BEGIN SOLUTION
    a(), b()
    times_a, times_b = [], []
    for _ in range(rounds):
        sides = [(a, times_a), (b, times_b)]
        if rng.random() < 0.5:
            sides.reverse()
        for side, times in sides:
            times.append(time_turn(side, loops, clock))
    return times_a, times_b
    ### END SOLUTION


# %% [markdown] step="verdict"
# ## Step 5: A verdict
#
# Now compare. The two times of a round were taken under the same conditions, so do not compare the
# median of all A with that of all B: take the *ratio* of B over A in each round first, and then the median
# of the ratios with its interval. What made a round slow made both slow, and cancels out.
#
# Write `ab_test`. It returns the `ratio` (below 1: B is faster), `low` and `high`, and a `verdict`
# about B:
#
# - `"faster"`: the whole interval lies below 1 / (1 + band);
# - `"slower"`: the whole interval lies above 1 + band;
# - `"same"`: the whole interval lies within 1 / (1 + band) and 1 + band, ends included;
# - `"inconclusive"`: anything else.
#
# An interval that contains 1 does not show that they are the same. It may only be wide. What was not
# shown to be different and what was shown to be the same are two things.
#
# *Hint:* draw the band and an interval in each of four places. Which words do the four get?


# %% step="verdict"
def ab_test(a_times, b_times, band=0.02, coverage=0.95):
    """Compare paired times; return ratio, low, high and the verdict about B in a dictionary."""
    ### BEGIN SOLUTION
    ratios = [b / a for a, b in zip(a_times, b_times, strict=True)]
    low, ratio, high = median_interval(ratios, coverage)
    if high < 1 / (1 + band):
        verdict = "faster"
    elif low > 1 + band:
        verdict = "slower"
    elif low >= 1 / (1 + band) and high <= 1 + band:
        verdict = "same"
    else:
        verdict = "inconclusive"
    return {"ratio": ratio, "low": low, "high": high, "verdict": verdict}
    ### END SOLUTION


# %% [markdown]
# Try it on two real versions: the network with its layers (A), and its three products written directly in
# NumPy (B). They compute the same, which is checked *before* anything is timed.

# %%
WEIGHTS = [(each.weight.data, each.bias.data) for each in mlp.layers if hasattr(each, "weight")]


def answer(images):
    """Compute the network's answers to images, a Tensor, in plain NumPy."""
    x = images.data
    for weight, bias in WEIGHTS[:-1]:
        x = np.maximum(x @ weight + bias, 0)
    weight, bias = WEIGHTS[-1]
    return x @ weight + bias


def plain():
    """Run the plain version on the example."""
    return answer(digits)


print(f"the answers differ by at most {np.abs(plain() - layers()).max():.1e}")
found = ab_test(*interleaved(layers, plain, 40, rng, loops))
print(f"plain: {found['verdict']}, {found['ratio']:.3f} of the time", end=" ")
print(f"({found['low']:.3f} to {found['high']:.3f}, 40 rounds)")

# %% [markdown] step="alarms"
# ## Step 6: How often is it wrong?
#
# A test that promises 95% may claim a difference that does not exist in 5 of 100 cases, no more. Does
# yours? Compare a function with itself, often, and count the *false alarms*.
#
# Write two functions. `decide(a_times, b_times)` returns a verdict; `draw()` returns two new lists of times
# of the same thing.
#
# - `alarm_rate`: the share of `experiments` whose verdict claims a difference, in whichever direction. Each
#   experiment draws anew.
# - `peeking`: what impatient people do. It returns a **function** of two lists of times: this looks at the
#   first n pairs, for each n of `looks`, and returns the first verdict that claims a difference. If
#   none does, it returns the verdict of the last look.
#
# *Hint:* `"same"` is a conclusion, but is it an alarm?


# %% step="alarms"
def alarm_rate(decide, draw, experiments):
    """Return the share of experiments in which a difference is claimed."""
    ### BEGIN SOLUTION
    verdicts = [decide(*draw()) for _ in range(experiments)]
    return sum(each in ("faster", "slower") for each in verdicts) / experiments
    ### END SOLUTION


def peeking(decide, looks):
    """Return a function of two lists of times that decides at the first look with a difference."""

    ### BEGIN SOLUTION
    def decide_early(a_times, b_times):
        verdict = "inconclusive"
        for n in looks:
            verdict = decide(a_times[:n], b_times[:n])
            if verdict in ("faster", "slower"):
                break
        return verdict

    return decide_early
    ### END SOLUTION


# %% [markdown]
# Three experiments, all without a band, so that the 95% are what is tested:
#
# 1. drawn times, where nothing but chance is at work: looking once, or ten times;
# 2. drawn times of a machine whose speed *wanders*: each turn is a bit faster or slower than the turn
#    before. All of A and then all of B, against turns;
# 3. real calls of the same function on your machine, now. It may wander or not; see for yourself.
#
# All of them together take about twenty seconds.


# %%
def verdict_of(a_times, b_times):
    """Return the verdict without a band."""
    return ab_test(a_times, b_times, band=0.0)["verdict"]


def drawn_times(count=100):
    """Draw times of two sides that are the same."""
    return rng.lognormal(0, 0.1, count), rng.lognormal(0, 0.1, count)


def wandering(count=60):
    """Draw the times of turns on a machine whose speed wanders by 1% per turn."""
    return np.exp(np.cumsum(rng.normal(0, 0.01, count))) * rng.lognormal(0, 0.05, count)


def wandering_a_then_b():
    """Give the first half of the turns to A, the second to B."""
    return np.split(wandering(), 2)


def wandering_in_turns():
    """Give one of two neighbours to A and the other to B, in random order."""
    return rng.permuted(wandering().reshape(-1, 2), axis=1).T


def real_a_then_b(rounds=30):
    """Time the same function twice: all of A, then all of B."""
    return ([time_turn(layers, loops) for _ in range(rounds)] for _ in "AB")


def real_in_turns(rounds=30):
    """Time the same function twice, in turns."""
    return interleaved(layers, layers, rounds, rng, loops)


early = peeking(verdict_of, range(10, 101, 10))
alarms = {
    "chance, one look": 100 * alarm_rate(verdict_of, drawn_times, 500),
    "chance, ten looks": 100 * alarm_rate(early, drawn_times, 500),
    "wandering, A then B": 100 * alarm_rate(verdict_of, wandering_a_then_b, 500),
    "wandering, in turns": 100 * alarm_rate(verdict_of, wandering_in_turns, 500),
    "real, A then B": 100 * alarm_rate(verdict_of, real_a_then_b, 40),
    "real, in turns": 100 * alarm_rate(verdict_of, real_in_turns, 40),
}
print(Bars("False alarms at 95%", alarms, "%"))

# %% [markdown]
# How many rounds are worth it? The same comparison with more and more of them: the interval gets narrower,
# but how quickly?

# %%
counts = (20, 40, 80, 160, 320)
a_times, b_times = interleaved(layers, plain, max(counts), rng, loops)
widths = []
for n in counts:
    starts = range(0, max(counts), n)  # all the pieces of that length
    some = [ab_test(a_times[at : at + n], b_times[at : at + n]) for at in starts]
    widths.append(100 * float(np.median([each["high"] - each["low"] for each in some])))
print(Growth("Width of the interval, in %", counts, {"width": widths}, size_name="rounds"))

# %% [markdown] step="score"
# ## Step 7: A score for the competition
#
# The competition compares entries with a reference. A *heat* starts both anew and gives numbers of both,
# such as latencies, for which less is better. Write `score`:
#
# - in each heat, take for each measure the logarithm of reference over entry, and average over the
#   measures. (Ratios multiply: one twice as fast and one half as fast should cancel out. The mean of 2
#   and 0.5 is 1.25; the mean of their logarithms is 0.)
# - over the heats, take the *Hodges-Lehmann* estimate of these numbers: the median of the means of all
#   pairs of heats, each heat paired with itself, too. It is nearly as sharp as a mean, and one broken
#   heat hardly moves it;
# - return exp of that: 2 means twice as good as the reference.
#
# *Hint:* for three heats there are six pairs: which?


# %% step="score"
def score(heats, measures):
    """Return how many times better than the reference; a heat is (reference, entry), two mappings."""
    ### BEGIN SOLUTION
    logs = [
        sum(math.log(reference[name] / entry[name]) for name in measures) / len(measures)
        for reference, entry in heats
    ]
    means = [(logs[i] + logs[j]) / 2 for i in range(len(logs)) for j in range(i, len(logs))]
    return math.exp(float(np.median(means)))
    ### END SOLUTION


# %% [markdown]
# Now enter the plain version into the `mlp_sprint`. The judge asks both sides the same questions, which
# neither has seen, in turns, and checks the accuracy first. This is a local and unverified run with the
# fewest heats that count; it takes about a quarter of a minute, and more than one where other
# programs run.

# %%
result = TinyMLPerfCompetition(heats=6).submit_entry("me", "mlp_sprint", answer)
judgement = result["judgement"]
heats = [(each.reference, each.entry) for each in judgement.heats]
mine = score(heats, judgement.event.scored)
print(f"the judge: {result['speedup_score']:.3f}x", end=" ")
print(
    f"({result['speedup_low']:.3f}x to {result['speedup_high']:.3f}x), {result['verdict']};",
    end=" ",
)
print(f"accuracy {result['accuracy']:.2%} and {result['reference_accuracy']:.2%}")
print(f"your score of the same heats: {mine:.3f}x")

# %% [markdown]
# To be on a board, an entry has to run in separate processes before the judge, where anybody can verify
# it. That is a folder, and four commands; `docs/competition_tutorial.md` explains them.
#
# ```console
# $ tinytorch compete new mine --event mlp_sprint --team "Your name"
# $ tinytorch compete check mine
# $ tinytorch compete run mine
# $ tinytorch compete submit mine --to submissions
# ```
#
# ## Your prediction
#
# Here is what you wrote beside what you measured.

# %%
slope = np.polyfit(np.log(counts), np.log(widths), 1)[0]
measured = {
    "alarms, A then B": alarms["wandering, A then B"],
    "alarms, in turns": alarms["wandering, in turns"],
    "alarms, peeking": alarms["chance, ten looks"],
    "slow pages, %": 100 * chance_of_slow(99, 50),
    "rounds for half": float(2 ** (-1 / slope)),
    "plain is faster": 1 / found["ratio"],
}
print(Outcome(PREDICTION, measured))

# %% [markdown]
# ## Yours against the real one
#
# The project's comparer does what yours does, and more: it builds both sides anew for each round (where
# things lie in memory moves their speed by a percent), subtracts the time in which the process did
# not run, uses signed ranks, and stops by a rule that accounts for its looks.

# %%
from tinytorch.measure.interleaving import hodges_lehmann, interleave
from tinytorch.measure.samples import Samples

theirs = compare(layers, plain, budget_s=2.0)
print(theirs)
print(
    f"yours: {found['verdict']}, {found['ratio']:.4f} ({found['low']:.4f} to {found['high']:.4f})"
)
same_median = Samples("", calls_us, unit="us").median_interval()
print("the interval of the median, theirs and yours, in µs:")
print(f"  {same_median.low:.2f} to {same_median.high:.2f}", end=" and ")
low, _, high = median_interval(calls_us)
print(f"{low:.2f} to {high:.2f}")
print("and what a comparison costs: yours with 40 rounds (baseline), the same with 20 (candidate)")
print(
    compare(
        lambda: ab_test(*interleaved(layers, plain, 40, rng)),
        lambda: ab_test(*interleaved(layers, plain, 20, rng)),
        budget_s=2.0,
    )
)
for real in (compare, interleave, Samples, hodges_lehmann):
    _, line = inspect.getsourcelines(real)
    print(f"{real.__name__:16} {inspect.getsourcefile(real)}:{line}")

# %% [markdown]
# ## The question
#
# A colleague has a version that is 1% faster, he says; and a service calls it 50 times for each page. How
# many rounds would you need to show 1% on your machine, with the width that you measured? Would its users
# notice? And what in the tail would they notice instead? Answer with your numbers: extrapolate the
# table of widths to an interval that ends clearly below 1, and compare the median page of 50 calls with
# the median call.

# %%
wanted = 1.0  # an interval as wide as the difference, so that half of it lies on either side
needed = counts[-1] * (widths[-1] / wanted) ** 2
print(f"{counts[-1]} rounds have a width of {widths[-1]:.2f}%;", end=" ")
print(f"about {max(6, needed):,.0f} rounds make it {wanted}%")
slow = pages["calls: 50"] / pages["calls: 1"]
print(f"the median page of 50 calls waits {slow:.2f} times as long as the median call")

# %% [markdown]
# ## Reflection
#
# Answer in your own words, in a few sentences each:
#
# 1. Your interval is correct for independent values. Why does "all of A, then all of B" claim differences
#    that are none, with the same interval?
# 2. Peeking makes false alarms, although each look is a correct test. Why? How could one look early and
#    stay honest?
# 3. When is `inconclusive` the right result, and what would you do next?
# 4. You tried ten ideas, and one is "faster" at 95%. What would you do before you tell anybody?
#
# `tinytorch learn solution reflection` shows a model answer, once all steps have passed.

# %% [markdown] answer="reflection"
# 1. Times that follow each other are not independent: clocks, caches and other programs change slowly,
#    so all of A share something that B does not have. More calls make the interval narrower around
#    the wrong place. In turns, what changes slowly meets both of a pair, and ratios of pairs are nearly
#    independent. (On a quiet machine the two may be equally good; you do not know beforehand.)
# 2. Each look is wrong in 5% of the cases, and not the same 5%: ten chances for an alarm, and it takes
#    one. One may plan the number of looks and make each stricter, so that all of them together are
#    wrong in 5% (Pocock, O'Brien and Fleming, alpha spending), or fix the number of rounds in advance.
# 3. When the interval reaches from a difference that matters to none, or beyond. Measure more if the
#    table of widths says that it will help; quiet the machine; or say that it does not matter, if even
#    the better end is not worth the change.
# 4. Measure that one again, with new data and a number of rounds fixed in advance: of ten ideas that
#    change nothing, one is "faster" at 95% with a probability of about 20% (each is wrong in half of 5%
#    in that direction). And report how many were tried.

# %% [markdown]
# ## You are done when
#
# - `tinytorch learn check` says that all steps passed;
# - you can say how often each of four ways to compare claimed a difference that was none;
# - your verdict on the plain version agrees with that of the comparer, and your score with the judge's;
# - you can say how many rounds it takes to show 1% on your machine;
# - you have answered the four questions above.
