"""The min-norm solver against exact rational arithmetic, known answers and its own optimality conditions."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stimulus_moo.errors import InvalidOption, InvalidWeights
from stimulus_moo.weightings import solver
from stimulus_moo.weightings.solver import FloatArray, kkt_residual, project_simplex
from stimulus_moo.weightings.solver import solve as min_norm_weights

EXACT = 1e-10  # the KKT residual DESIGN.md promises
SEEDS = st.integers(0, 2**32 - 1)


def examples(count: int) -> settings:
    return settings(max_examples=count, derandomize=True, deadline=None, database=None)


def literal_residual(gramian: FloatArray, weights: FloatArray) -> float:
    """The formula of DESIGN.md as it stands there, for Gramians whose entries do not overflow."""
    norms = np.sqrt(gramian.diagonal())
    value, mean_norm, slopes = weights @ gramian @ weights, weights @ norms, gramian @ weights
    if mean_norm == 0.0:
        return 0.0
    positive = norms > 0.0
    return float(np.max((value - slopes[positive]) / (mean_norm * norms[positive])))


def assert_in_simplex(weights: FloatArray) -> None:
    assert np.all(weights >= 0.0)
    assert abs(weights.sum() - 1.0) <= 1e-14


# Families of rows: each takes a generator, S and the dimension, and returns the S rows.


def generic(rng: np.random.Generator, size: int, dimension: int) -> FloatArray:
    return rng.standard_normal((size, dimension))


def correlated(rng: np.random.Generator, size: int, dimension: int) -> FloatArray:
    return generic(rng, size, dimension) + rng.uniform(0.0, 3.0)


def integer(rng: np.random.Generator, size: int, dimension: int) -> FloatArray:
    return rng.integers(-1, 2, (size, dimension)).astype(np.float64)


def duplicates(rng: np.random.Generator, size: int, dimension: int) -> FloatArray:
    return correlated(rng, size, dimension)[rng.integers(0, size, size)]


def badly_scaled(rng: np.random.Generator, size: int, dimension: int) -> FloatArray:
    return correlated(rng, size, dimension) * 10.0 ** rng.uniform(-12, 12, (size, 1))


def nearly_opposite(rng: np.random.Generator, size: int, dimension: int) -> FloatArray:
    rows, half = generic(rng, size, dimension), size // 2
    rows[half : 2 * half] = -rows[:half] + 10.0 ** rng.uniform(-16, -3) * generic(rng, half, dimension)
    return rows


def nearly_opposite_badly_scaled(rng: np.random.Generator, size: int, dimension: int) -> FloatArray:
    return nearly_opposite(rng, size, dimension) * 10.0 ** rng.uniform(-12, 12, (size, 1))


def nearly_parallel(rng: np.random.Generator, size: int, dimension: int) -> FloatArray:
    return generic(rng, 1, dimension) + 10.0 ** rng.uniform(-12, -1) * generic(rng, size, dimension)


def ill_conditioned(rng: np.random.Generator, size: int, dimension: int) -> FloatArray:
    return generic(rng, size, dimension) * 10.0 ** (-8.0 * np.arange(dimension) / dimension)


def small_row_beside_stationary_giants(rng: np.random.Generator, size: int, dimension: int) -> FloatArray:
    rows = np.zeros((size, dimension + 1))
    magnitude = 10.0 ** rng.uniform(0, 12)
    rows[1:, :dimension] = magnitude * generic(rng, size - 1, dimension)
    rows[0] = generic(rng, 1, dimension + 1) / magnitude
    return rows @ np.linalg.qr(generic(rng, dimension + 1, dimension + 1))[0]


FAMILIES = [
    generic,
    correlated,
    integer,
    duplicates,
    badly_scaled,
    nearly_opposite,
    nearly_opposite_badly_scaled,
    nearly_parallel,
    ill_conditioned,
    small_row_beside_stationary_giants,
]
Family = Callable[[np.random.Generator, int, int], FloatArray]


@pytest.mark.parametrize("family", FAMILIES)
@examples(300)
@given(seed=SEEDS, size=st.integers(2, 20), dimension=st.integers(1, 40))
def test_weights_are_optimal(family: Family, seed: int, size: int, dimension: int) -> None:
    rows = family(np.random.default_rng(seed), size, dimension)
    gramian = rows @ rows.T
    weights = min_norm_weights(gramian)
    assert_in_simplex(weights)
    assert kkt_residual(gramian, weights) <= EXACT
    assert literal_residual(gramian, weights) <= EXACT


@pytest.mark.parametrize("family", FAMILIES)
@examples(8)
@given(seed=SEEDS, dimension=st.sampled_from([1, 3, 32, 127, 128, 400]))
def test_weights_of_128_objectives_are_optimal(family: Family, seed: int, dimension: int) -> None:
    rows = family(np.random.default_rng(seed), 128, dimension)
    gramian = rows @ rows.T
    weights = min_norm_weights(gramian)
    assert_in_simplex(weights)
    assert literal_residual(gramian, weights) <= EXACT


@pytest.mark.parametrize("dimension", [2, 100, 512, 2048])
@pytest.mark.parametrize("family", [generic, correlated, badly_scaled, nearly_opposite_badly_scaled])
def test_weights_of_512_objectives_are_optimal(family: Family, dimension: int) -> None:
    rows = family(np.random.default_rng(dimension), 512, dimension)
    gramian = rows @ rows.T
    weights = min_norm_weights(gramian)
    assert_in_simplex(weights)
    assert literal_residual(gramian, weights) <= EXACT


@pytest.mark.parametrize("size", [2, 3, 8, 40, 128, 512])
@pytest.mark.parametrize("family", [generic, correlated])
def test_relative_excess_is_rounding(family: Family, size: int) -> None:
    rows = family(np.random.default_rng(size), size, 2 * size)
    gramian = rows @ rows.T
    weights = min_norm_weights(gramian).astype(np.longdouble)
    slopes = gramian.astype(np.longdouble) @ weights
    value = weights @ slopes
    # The Frank-Wolfe gap bounds the excess over the minimum from above.
    assert 2.0 * (value - slopes.min()) <= 1e-10 * value


@pytest.mark.parametrize("family", FAMILIES)
@examples(60)
@given(seed=SEEDS, size=st.integers(3, 20), dimension=st.integers(1, 40))
def test_regularised_problem_has_the_same_value(family: Family, seed: int, size: int, dimension: int) -> None:
    rows = family(np.random.default_rng(seed), size, dimension)
    gramian = rows @ rows.T
    if gramian.diagonal().min() == 0.0:  # a zero row never gets there
        return
    plain = min_norm_weights(gramian)
    regularised = solver._regularised_weights(gramian, np.ones(size, dtype=np.bool_))
    assert literal_residual(gramian, regularised) <= EXACT
    allowed = EXACT * max(weights @ np.sqrt(gramian.diagonal()) for weights in (plain, regularised)) ** 2
    assert abs(plain @ gramian @ plain - regularised @ gramian @ regularised) <= allowed


@pytest.mark.parametrize(
    ("rows", "regularised"),
    [
        (np.eye(4) + 1.0, False),
        (np.eye(4)[[0, 1, 2, 2]], True),  # a duplicate
        (np.eye(4) + 1e5, True),  # nearly parallel
        (np.eye(4) * [[1.0], [1.0], [1.0], [1e5]], True),  # of different lengths
    ],
)
def test_only_dependent_or_badly_scaled_rows_are_regularised(
    rows: FloatArray, regularised: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []
    solve = solver._regularised_weights
    monkeypatch.setattr(solver, "_regularised_weights", lambda *arguments: calls.append(1) or solve(*arguments))
    assert literal_residual(rows @ rows.T, min_norm_weights(rows @ rows.T)) <= EXACT
    assert bool(calls) is regularised


def test_duplicates_share_their_weight() -> None:
    rows = np.random.default_rng(0).standard_normal((4, 50))[[0, 1, 2, 3, 3]]
    weights = min_norm_weights(rows @ rows.T)
    assert weights[3] == pytest.approx(weights[4], rel=1e-4)  # rounding over the ridge
    assert weights[3] + weights[4] == pytest.approx(min_norm_weights(rows[:4] @ rows[:4].T)[3], rel=1e-9)


def solve_exactly(matrix: list[list[Fraction]], right: list[Fraction]) -> list[Fraction] | None:
    """Gauss-Jordan elimination in rational arithmetic; None for a singular matrix."""
    size = len(matrix)
    table = [[*row, value] for row, value in zip(matrix, right, strict=True)]
    for column in range(size):
        pivot = next((row for row in range(column, size) if table[row][column]), None)
        if pivot is None:
            return None
        table[column], table[pivot] = table[pivot], table[column]
        table[column] = [entry / table[column][column] for entry in table[column]]
        for row in range(size):
            if row != column and (factor := table[row][column]):
                table[row] = [x - factor * y for x, y in zip(table[row], table[column], strict=True)]
    return [row[-1] for row in table]


def exact_value(gramian: list[list[Fraction]], weights: list[Fraction]) -> Fraction:
    indices = range(len(weights))
    return sum((weights[i] * gramian[i][j] * weights[j] for i in indices for j in indices), Fraction(0))


def exact_minimum(gramian: list[list[Fraction]]) -> Fraction:
    """Enumerate every support: some optimum lies on affinely independent rows, where its equations are regular."""
    one, values = Fraction(1), []
    for count in range(1, len(gramian) + 1):
        for support in combinations(range(len(gramian)), count):
            bordered = [[gramian[i][j] for j in support] + [one] for i in support] + [[one] * count + [Fraction(0)]]
            solution = solve_exactly(bordered, [Fraction(0)] * count + [one])
            if solution is not None and min(solution[:-1]) >= 0:
                values.append(-solution[-1])  # the multiplier is minus the value
    return min(values)


@examples(150)
@given(data=st.data(), size=st.integers(1, 5), dimension=st.integers(1, 4))
def test_value_equals_exact_enumeration_of_supports(data: st.DataObject, size: int, dimension: int) -> None:
    numbers = st.lists(st.integers(-9, 9), min_size=dimension, max_size=dimension)
    rows = data.draw(st.lists(numbers, min_size=size, max_size=size))
    gramian = [[Fraction(int(np.dot(first, second))) for second in rows] for first in rows]
    weights = [Fraction(weight) for weight in min_norm_weights(np.array(gramian, dtype=np.float64)).tolist()]
    value = exact_value(gramian, weights) / sum(weights) ** 2
    minimum = exact_minimum(gramian)
    assert minimum <= value <= minimum * (1 + Fraction(1e-10)) + Fraction(1e-18)


@examples(300)
@given(
    first=st.floats(1e-12, 1e12),
    second=st.floats(1e-12, 1e12),
    gap=st.floats(-16, 0.0),
    opposite=st.booleans(),
)
def test_two_weights_are_accurate_to_rounding(first: float, second: float, gap: float, opposite: bool) -> None:
    cosine = (1.0 - 10.0**gap) * (-1.0 if opposite else 1.0)
    gramian = np.array([[first**2, cosine * first * second], [cosine * first * second, second**2]])
    a, b, c = Fraction(gramian[0, 0]), Fraction(gramian[0, 1]), Fraction(gramian[1, 1])
    denominator = a - 2 * b + c
    exact = (c - b) / denominator if denominator else Fraction(1)
    exact = min(max(exact, Fraction(0)), Fraction(1))
    weights = min_norm_weights(gramian).tolist()
    if denominator > 0:
        # A few roundings, each relative to the weight itself: small weights are as accurate as large ones.
        assert weights == pytest.approx([float(exact), float(1 - exact)], rel=1e-15, abs=0.0)
    assert literal_residual(gramian, np.array(weights)) <= EXACT


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([[3.0, 4.0]], [1.0]),
        ([[0.0]], [1.0]),
        ([[1.0, 0.0], [0.0, 2.0]], [0.8, 0.2]),
        ([[1.0, 1.0], [1.0, 1.0]], [1.0, 0.0]),
        ([[1.0, 0.0], [3.0, 1.0]], [1.0, 0.0]),
        ([[1.0, 0.0], [0.0, 1.0], [2.0, 2.0]], [0.5, 0.5, 0.0]),
        ([[1.0, 0.0, 0.0], [0.0, 2.0, 0.0], [0.0, 0.0, 4.0]], [16 / 21, 4 / 21, 1 / 21]),
        ([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0]], [0.5, 0.5, 0.0]),
        ([[0.0, 1.0], [3**0.5 / 2, -0.5], [-(3**0.5) / 2, -0.5]], [1 / 3, 1 / 3, 1 / 3]),
    ],
)
def test_known_answers(rows: list[list[float]], expected: list[float]) -> None:
    gramian = np.array(rows) @ np.array(rows).T
    assert min_norm_weights(gramian) == pytest.approx(np.array(expected), abs=1e-11)


@pytest.mark.parametrize("size", [2, 3, 40])
def test_orthogonal_rows_get_weights_inverse_to_their_squared_norms(size: int) -> None:
    squared_norms = 10.0 ** np.linspace(-24, 24, size)
    expected = 1.0 / squared_norms / np.sum(1.0 / squared_norms)
    assert min_norm_weights(np.diag(squared_norms)) == pytest.approx(expected, rel=1e-12, abs=0.0)


@pytest.mark.parametrize("size", [2, 3, 8])
@pytest.mark.parametrize("zero_rows", [[0], [1], [1, 0]])
def test_first_zero_row_takes_all_the_weight(size: int, zero_rows: list[int]) -> None:
    rows = np.random.default_rng(size).standard_normal((size, 5))
    rows[zero_rows] = 0.0
    weights = min_norm_weights(rows @ rows.T)
    assert weights.tolist() == [float(index == min(zero_rows)) for index in range(size)]
    assert kkt_residual(rows @ rows.T, weights) == 0.0


@examples(100)
@given(seed=SEEDS, size=st.integers(2, 12), exponent=st.floats(-250, 250))
def test_scale_of_the_gramian_does_not_matter(seed: int, size: int, exponent: float) -> None:
    rows = correlated(np.random.default_rng(seed), size, 4 * size)
    gramian = rows @ rows.T
    scaled = gramian * 10.0**exponent
    weights = min_norm_weights(scaled)
    # Rounding of the scaled entries is amplified by the condition number of the Gramian, at most about 1e4 here.
    assert weights == pytest.approx(min_norm_weights(gramian), abs=1e-10)
    assert kkt_residual(scaled, weights) <= EXACT


@pytest.mark.parametrize("family", [generic, correlated, duplicates, nearly_opposite])
@examples(60)
@given(seed=SEEDS, size=st.integers(2, 20), dimension=st.integers(1, 20))
def test_order_of_the_objectives_does_not_move_the_point(family: Family, seed: int, size: int, dimension: int) -> None:
    rng = np.random.default_rng(seed)
    rows = family(rng, size, dimension)
    reordered = rows[rng.permutation(size)]
    point = min_norm_weights(rows @ rows.T) @ rows
    other = min_norm_weights(reordered @ reordered.T) @ reordered
    # The point is unique even where the weights are not; the square root of rounding bounds how well G fixes it.
    assert np.linalg.norm(point - other) <= 1e-7 * np.linalg.norm(rows, axis=1).max()


@examples(100)
@given(seed=SEEDS, size=st.integers(2, 40), dimension=st.integers(1, 40))
def test_gramians_rounded_to_float32_give_sane_weights(seed: int, size: int, dimension: int) -> None:
    rows = generic(np.random.default_rng(seed), size, dimension)
    gramian = (rows @ rows.T).astype(np.float32).astype(np.float64)  # eigenvalues down to about -1e-7
    weights = min_norm_weights(gramian)
    assert_in_simplex(weights)
    assert kkt_residual(gramian, weights) <= 1e-6  # a few roundings of float32


@examples(100)
@given(seed=SEEDS, size=st.integers(2, 12))
def test_an_indefinite_matrix_still_gives_weights_in_the_simplex(seed: int, size: int) -> None:
    matrix = generic(np.random.default_rng(seed), size, size)
    assert_in_simplex(min_norm_weights(matrix + matrix.T))
    assert_in_simplex(min_norm_weights(matrix + matrix.T + 2 * np.diag(np.abs(matrix).max(axis=0))))


@pytest.mark.parametrize("family", FAMILIES)
def test_safe_path_alone_is_optimal(family: Family, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(solver, "_pivot", lambda *arguments: None)
    rng = np.random.default_rng(0)
    for _ in range(20):
        rows = family(rng, int(rng.integers(3, 20)), int(rng.integers(1, 20)))
        weights = min_norm_weights(rows @ rows.T)
        assert literal_residual(rows @ rows.T, weights) <= EXACT


def test_pivoting_that_cycles_falls_back_to_the_safe_path(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = np.arange(40)
    gramian = 1.0 / (counts[:, None] + counts + 1.0)  # Hilbert's matrix: positive definite, condition about 1e18
    calls = []
    safe = solver._safe_solution
    monkeypatch.setattr(solver, "_safe_solution", lambda *arguments: calls.append(1) or safe(*arguments))
    weights = min_norm_weights(gramian)
    assert calls == [1]
    assert literal_residual(gramian, weights) <= EXACT


def test_weights_stay_in_the_simplex_when_every_method_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object, **options: object) -> None:
        raise RuntimeError("Maximum number of iterations reached.")

    monkeypatch.setattr(solver, "_pivot", lambda *arguments: None)
    monkeypatch.setattr(solver, "nnls", fail)
    assert min_norm_weights(np.diag([4.0, 1.0, 9.0])).tolist() == [0.0, 1.0, 0.0]


@pytest.mark.parametrize("magnitude", [1e-300, 1e-150, 1e150, 1e307])
@pytest.mark.parametrize("size", [2, 3, 20])
def test_extreme_magnitudes_neither_overflow_nor_underflow(size: int, magnitude: float) -> None:
    rows = np.random.default_rng(size).uniform(-1.0, 1.0, (size, 5))
    gramian = rows @ rows.T * magnitude
    weights = min_norm_weights(gramian)
    assert_in_simplex(weights)
    assert kkt_residual(gramian, weights) <= EXACT


@pytest.mark.parametrize("size", [2, 3, 20])
def test_numbers_too_small_to_invert_still_give_weights_in_the_simplex(size: int) -> None:
    assert min_norm_weights(np.eye(size) * 1e-310) == pytest.approx(np.full(size, 1.0 / size), abs=1e-12)


@pytest.mark.parametrize("size", [2, 3, 20])
def test_the_gramian_is_left_as_it_was_in_any_layout(size: int) -> None:
    rows = correlated(np.random.default_rng(size), size, 2 * size)
    gramian = np.ascontiguousarray(rows @ rows.T)
    weights = min_norm_weights(gramian)
    wide = np.repeat(np.repeat(gramian, 2, axis=0), 2, axis=1)
    for layout in (gramian, np.asfortranarray(gramian), wide[::2, ::2]):
        before = layout.copy()
        assert np.array_equal(min_norm_weights(layout), weights)
        assert np.array_equal(layout, before)


@examples(100)
@given(seed=SEEDS, size=st.integers(1, 12), dimension=st.integers(1, 12))
def test_kkt_residual_is_the_formula_of_the_design(seed: int, size: int, dimension: int) -> None:
    rng = np.random.default_rng(seed)
    rows = integer(rng, size, dimension) * 10.0 ** rng.uniform(-2, 2, (size, 1))
    gramian, weights = rows @ rows.T, rng.dirichlet(np.ones(size))
    assert kkt_residual(gramian, weights) == pytest.approx(literal_residual(gramian, weights), rel=1e-9, abs=1e-12)


def test_kkt_residual_of_a_vertex_counts_the_neglected_row() -> None:
    assert kkt_residual(np.eye(2), np.array([1.0, 0.0])) == pytest.approx(1.0)
    assert kkt_residual(np.eye(2) * 1e300, np.array([1.0, 0.0])) == pytest.approx(1.0)
    assert kkt_residual(np.diag([1.0, 4.0]), np.array([0.8, 0.2])) == pytest.approx(0.0, abs=1e-15)


@pytest.mark.parametrize(
    ("vector", "expected"),
    [
        ([5.0], [1.0]),
        ([0.2, 0.3, 0.5], [0.2, 0.3, 0.5]),
        ([0.5, 0.5, 0.5], [1 / 3, 1 / 3, 1 / 3]),
        ([2.0, 0.0], [1.0, 0.0]),
        ([0.6, 0.2, -1.0], [0.7, 0.3, 0.0]),
        ([1e308, -1e308, 0.0], [1.0, 0.0, 0.0]),
        ([1e200, 1e200], [0.5, 0.5]),
        ([-1e200, -1e200], [0.5, 0.5]),
        ([5e-324, 0.0], [0.5, 0.5]),
        ([1e-200, 1.0 + 1e-200], [0.0, 1.0]),
    ],
)
def test_projection_known_answers(vector: list[float], expected: list[float]) -> None:
    assert project_simplex(np.array(vector)) == pytest.approx(np.array(expected), abs=1e-15)


@examples(200)
@given(values=st.lists(st.floats(-1e6, 1e6) | st.floats(-2, 2), min_size=1, max_size=60))
def test_projection_subtracts_one_threshold_and_clips(values: list[float]) -> None:
    vector = np.array(values)
    projected = project_simplex(vector)
    assert_in_simplex(projected)
    rounding = 4e-16 * max(1.0, np.abs(vector).max()) * len(values)
    threshold = (vector - projected)[projected.argmax()]
    assert np.maximum(vector - threshold, 0.0) == pytest.approx(projected, abs=rounding)


@examples(100)
@given(seed=SEEDS, size=st.integers(1, 60))
def test_projection_keeps_points_of_the_simplex(seed: int, size: int) -> None:
    point = np.random.default_rng(seed).dirichlet(np.full(size, 0.3))
    # The threshold, exactly 0 here, is off by the rounding of a running sum of up to 60 terms.
    assert project_simplex(point) == pytest.approx(point, rel=0.0, abs=1e-14)


@pytest.mark.parametrize("shape", [(0, 0), (3,), (2, 3), (2, 2, 2), ()])
def test_gramian_that_is_not_a_square_matrix_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(InvalidOption, match="found shape") as caught:
        min_norm_weights(np.zeros(shape))
    assert str(shape) in str(caught.value)
    with pytest.raises(InvalidOption, match="found shape"):
        kkt_residual(np.zeros(shape), np.ones(1))


def test_sums_that_overflow_are_no_error() -> None:
    assert min_norm_weights(np.full((2, 2), 1.7e308)).tolist() == [1.0, 0.0]


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_entry_that_is_not_finite_is_named(size: int, value: float) -> None:
    gramian = np.eye(size)
    gramian[1, 0] = value
    with pytest.raises(InvalidWeights, match=rf"found {value} at \(1, 0\)"):
        min_norm_weights(gramian)


def test_weights_of_another_length_are_refused() -> None:
    with pytest.raises(InvalidOption, match=r"weights must hold 3 numbers, found shape \(2,\)"):
        kkt_residual(np.eye(3), np.ones(2))


@pytest.mark.parametrize("shape", [(0,), (2, 2), ()])
def test_projection_of_something_other_than_a_vector_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(InvalidOption, match="vector must be one-dimensional and not empty, found shape"):
        project_simplex(np.zeros(shape))


def test_projection_of_nan_is_refused() -> None:
    with pytest.raises(InvalidWeights, match=r"found nan at \(1,\)"):
        project_simplex(np.array([0.0, np.nan]))
