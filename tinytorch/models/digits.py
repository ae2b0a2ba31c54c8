"""Images of handwritten-looking digits, drawn by a seeded generator.

A digit is a *style*: a few strokes through hand-placed control points. Each image takes a style of
its digit, moves the control points, samples a smooth curve through them, bends, slants, turns,
scales and shifts the curve, and draws it with a round pen: the grey value of a pixel depends on
its distance to the nearest of the short straight segments that make up the curve. Contrast and
noise come last.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tinytorch.core.kernels.backend import matmul
from tinytorch.errors import SettingError

FloatArray = NDArray[np.float32]
Point = tuple[float, float]
Stroke = tuple[Point, ...]

SIDE = 28
CLASSES = 10
# Images are made in whole blocks, each with a random stream of its own, so the first images do not
# depend on how many follow. A multiple of ten: every block holds each digit equally often.
BLOCK = 250
# Pieces of curve per image. The longest digit, an 8, has pieces of about two pixels.
SEGMENTS = 24

STYLES = Path(__file__).with_name("digits.json")
"""The styles of each digit, each a list of strokes, each a list of control points (x, y) in a box
of height 2, y downwards, the centre of the image at (0, 0). Strokes that name the same point are
joined there: the point moves for all of them together."""


@dataclass(frozen=True)
class Handwriting:
    """How far writers differ: standard deviations, or (low, high) of a uniform distribution.

    Lengths are in pixels, but ``point_jitter``, ``bend`` (the height of a wave) and
    ``bend_frequency`` (radians per unit) are in the units of ``STYLES``. ``pressure`` is the share
    by which the pen widens and narrows, ``swells`` times along the digit; ``edge`` is the width of
    the soft rim of a stroke.

    The values are chosen for difficulty: trained on 20,000 images, the zoo's MLP gets about 97.6%
    of fresh images right and its CNN about 99.3%.
    """

    point_jitter: float = 0.095
    bend: float = 0.078
    bend_frequency: float = 2.0
    slant: float = 0.17
    rotation_rad: float = 0.105
    half_height: tuple[float, float] = (8.0, 10.5)
    log_aspect: float = 0.11
    shift: float = 0.8
    pen_radius: tuple[float, float] = (0.8, 1.6)
    pressure: float = 0.12
    swells: tuple[float, float] = (0.3, 1.5)
    edge: tuple[float, float] = (0.8, 1.8)
    contrast: tuple[float, float] = (0.75, 1.0)
    noise: tuple[float, float] = (0.05, 0.26)


HANDWRITING = Handwriting()


@dataclass(frozen=True)
class Curves:
    """A style as linear algebra: segment ends are fixed mixtures of the control points."""

    points: FloatArray  # (points, 2)
    starts: FloatArray  # (SEGMENTS, points)
    ends: FloatArray  # (SEGMENTS, points)


def draw_digits(
    count: int, *, seed: int = 0, progress: Callable[[int], None] | None = None
) -> tuple[FloatArray, NDArray[np.int64]]:
    """Draw images (count, 28, 28) of digits, bright ink of at most 1 on dark 0, and their labels.

    The same seed gives the same images, and the first ones do not depend on ``count``. Every 250
    images hold each digit 25 times, in random order. ``progress`` is called with the number of
    finished images after each of these blocks.
    """
    if count < 0:
        raise SettingError(f"count is {count}: it must not be negative")
    if seed < 0:
        raise SettingError(f"seed is {seed}: it must not be negative")
    images = np.empty((count, SIDE, SIDE), dtype=np.float32)
    labels = np.empty(count, dtype=np.int64)
    for start in range(0, count, BLOCK):
        stop = min(start + BLOCK, count)
        # A spawn key cannot collide with another seed, unlike a number computed from both.
        stream = np.random.SeedSequence(seed, spawn_key=(start // BLOCK,))
        block_images, block_labels = _draw_block(np.random.default_rng(stream))
        images[start:stop] = block_images[: stop - start]
        labels[start:stop] = block_labels[: stop - start]
        if progress is not None:
            progress(stop)
    return images, labels


def _draw_block(rng: np.random.Generator) -> tuple[FloatArray, NDArray[np.int64]]:
    labels = rng.permutation(np.arange(BLOCK, dtype=np.int64) % CLASSES)
    ends = _place(_write(labels, rng), rng)
    ink = _ink(ends, rng)  # (SIDE, SIDE, BLOCK)
    ink *= _uniform(HANDWRITING.contrast, BLOCK, rng)
    noise = rng.standard_normal(ink.shape, dtype=np.float32)
    noise *= _uniform(HANDWRITING.noise, BLOCK, rng)
    ink += noise
    np.clip(ink, 0.0, 1.0, out=ink)
    return np.ascontiguousarray(ink.transpose(2, 0, 1)), labels


def _uniform(bounds: tuple[float, float], count: int, rng: np.random.Generator) -> FloatArray:
    low, high = bounds
    return rng.uniform(low, high, count).astype(np.float32)


def _write(labels: NDArray[np.int64], rng: np.random.Generator) -> FloatArray:
    """Choose a style for each label and return its segments: (2 ends, SEGMENTS, BLOCK, 2)."""
    segments = np.empty((2, SEGMENTS, labels.size, 2), dtype=np.float32)
    preference = rng.random(labels.size)
    for digit, styles in CURVES.items():
        chosen = (preference * len(styles)).astype(np.int64)
        for index, curves in enumerate(styles):
            (where,) = np.nonzero((labels == digit) & (chosen == index))
            moves = rng.standard_normal((where.size, *curves.points.shape), dtype=np.float32)
            points = curves.points + HANDWRITING.point_jitter * moves  # (images, points, 2)
            segments[0][:, where] = np.einsum("sp,ipc->sic", curves.starts, points)
            segments[1][:, where] = np.einsum("sp,ipc->sic", curves.ends, points)
    return segments


def _place(segments: FloatArray, rng: np.random.Generator) -> FloatArray:
    """Bend the plane smoothly, then slant, turn, scale and shift it into pixel coordinates."""
    hand = HANDWRITING
    count = segments.shape[2]
    phase = rng.uniform(0.0, 2.0 * np.pi, (count, 2)).astype(np.float32)
    waves = rng.normal(0.0, hand.bend_frequency, (count, 2, 2)).astype(np.float32)
    bent = segments + hand.bend * np.sin(np.einsum("icd,esid->esic", waves, segments) + phase)
    slant = rng.normal(0.0, hand.slant, count)
    turn = rng.normal(0.0, hand.rotation_rad, count)
    height = _uniform(hand.half_height, count, rng)
    width = height * np.exp(rng.normal(0.0, hand.log_aspect, count))
    cosine, sine = np.cos(turn), np.sin(turn)
    # Rotation times (width and slant, height); a positive slant leans to the right.
    plane = np.empty((count, 2, 2), dtype=np.float32)
    plane[:, 0, 0] = cosine * width
    plane[:, 0, 1] = -cosine * width * slant - sine * height
    plane[:, 1, 0] = sine * width
    plane[:, 1, 1] = -sine * width * slant + cosine * height
    centre = (SIDE - 1) / 2 + rng.normal(0.0, hand.shift, (count, 2)).astype(np.float32)
    placed: FloatArray = np.einsum("icd,esid->esic", plane, bent) + centre
    return placed


def _ink(segments: FloatArray, rng: np.random.Generator) -> FloatArray:
    """Draw segments with a round pen: (SIDE, SIDE, BLOCK), rows first."""
    count = segments.shape[2]
    radius = _uniform(HANDWRITING.pen_radius, count, rng)
    edge = _uniform(HANDWRITING.edge, count, rng)
    ink = np.sqrt(_nearest(segments, _pressure(count, rng)))
    np.subtract(radius, ink, out=ink)
    ink /= edge
    ink += 0.5
    np.clip(ink, 0.0, 1.0, out=ink)
    return ink


def _pressure(count: int, rng: np.random.Generator) -> FloatArray:
    """Return the width of the pen at each segment, relative to its mean: (SEGMENTS, count)."""
    along = np.linspace(0.0, 2.0 * np.pi, SEGMENTS)[:, None]
    turns = _uniform(HANDWRITING.swells, count, rng)
    swell = np.sin(along * turns + rng.uniform(0.0, 2.0 * np.pi, count))
    return (1.0 + HANDWRITING.pressure * swell).astype(np.float32)


def _nearest(segments: FloatArray, pressure: FloatArray) -> FloatArray:
    """Compute the squared distance of each pixel to the nearest segment, over its pressure.

    One segment of all images at a time: in the frame of a segment (along it, across it) both
    coordinates of a pixel are a term of its column plus a term of its row, and images lie on the
    last axis, so every step is one pass over contiguous memory.
    """
    centre = (segments[0] + segments[1]) / 2  # (SEGMENTS, count, 2)
    half = (segments[1] - segments[0]) / 2
    half_length = np.maximum(np.hypot(half[..., 0], half[..., 1]), np.float32(1e-4))
    tangent = half / (half_length * pressure)[..., None]
    reach = half_length / pressure
    grid = np.arange(SIDE, dtype=np.float32)[:, None]
    nearest = np.full((SIDE, SIDE, centre.shape[1]), np.inf, dtype=np.float32)
    along, across = np.empty_like(nearest), np.empty_like(nearest)
    for middle, direction, end in zip(centre, tangent, reach, strict=True):
        x, y = grid - middle[:, 0], grid - middle[:, 1]  # (SIDE, count)
        np.add((x * direction[:, 0])[None], (y * direction[:, 1])[:, None], out=along)
        np.add((x * -direction[:, 1])[None], (y * direction[:, 0])[:, None], out=across)
        np.abs(along, out=along)
        along -= end
        np.maximum(along, 0.0, out=along)
        along *= along
        across *= across
        along += across
        np.minimum(nearest, along, out=nearest)
    return nearest


def _curves(strokes: tuple[Stroke, ...]) -> Curves:
    """Spread the segments over the strokes by length and sample a spline through each."""
    points = list(dict.fromkeys(point for stroke in strokes for point in stroke))
    starts, ends = [], []
    for stroke, pieces in zip(strokes, _share_segments(strokes), strict=True):
        chosen = np.array([[point == known for known in points] for point in stroke], np.float64)
        samples = matmul(_spline(len(stroke), pieces), chosen)
        starts.append(samples[:-1])
        ends.append(samples[1:])
    return Curves(
        points=np.array(points, dtype=np.float32),
        starts=np.concatenate(starts).astype(np.float32),
        ends=np.concatenate(ends).astype(np.float32),
    )


def _share_segments(strokes: tuple[Stroke, ...]) -> list[int]:
    lengths = [np.hypot(*np.diff(np.array(stroke), axis=0).T).sum() for stroke in strokes]
    borders = np.rint(np.cumsum([0.0, *lengths]) / sum(lengths) * SEGMENTS).astype(int)
    return [int(pieces) for pieces in np.diff(borders)]


def _spline(points: int, pieces: int) -> NDArray[np.float64]:
    """Return the Catmull-Rom weights (pieces + 1, points) of samples evenly spaced in parameter."""
    identity = np.eye(points)
    padded = np.vstack([2 * identity[0] - identity[1], identity, 2 * identity[-1] - identity[-2]])
    position = np.linspace(0.0, points - 1, pieces + 1)
    knot = np.minimum(position.astype(int), points - 2)
    t = (position - knot)[:, None]
    before, left, right, after = (padded[knot + offset] for offset in range(4))
    slope_left, slope_right = (right - before) / 2, (after - left) / 2
    bend = 3 * (right - left) - 2 * slope_left - slope_right
    twist = 2 * (left - right) + slope_left + slope_right
    samples: NDArray[np.float64] = left + t * (slope_left + t * (bend + t * twist))
    return samples


def _read_curves() -> dict[int, list[Curves]]:
    drawn: dict[str, list[list[list[list[float]]]]] = json.loads(STYLES.read_text("ascii"))
    return {
        int(digit): [
            _curves(tuple(tuple((x, y) for x, y in stroke) for stroke in strokes))
            for strokes in styles
        ]
        for digit, styles in drawn.items()
    }


CURVES = _read_curves()
