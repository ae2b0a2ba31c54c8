import pytest
from parts import require_part

torch = require_part("torch")
nn = torch.nn

from tinytorch.transforms.fuse_attention.chain import queries_and_keys, values_of
from tinytorch.transforms.fuse_attention.kernel import NotFused

SIZES = {"b": 2, "h": 3, "i": 4, "j": 5, "d": 6, "e": 7}


def tensor(term, seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn([SIZES[each] for each in term], generator=generator, dtype=torch.float64)


def laid_out(layout, value):
    """Compute what the nodes of a layout give."""
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    graph.output(type(layout)(x, *list(vars(layout).values())[1:]).emit(graph))
    return torch.fx.GraphModule(nn.Module(), graph)(value)


def einsum(equation):
    graph = torch.fx.Graph()
    one, other = graph.placeholder("one"), graph.placeholder("other")
    return graph.call_function(torch.einsum, (equation, one, other)), one, other


@pytest.mark.parametrize(
    "equation",
    ["bhid,bhjd->bhij", "bihd,bjhd->bhij", "bhid,bjd->bhij", "bhjd,bhid->bhij", "id,jd->ij"],
)
def test_einsums_are_read_as_queries_and_keys(equation):
    node, one, other = einsum(equation)
    terms = equation.split("->")[0].split(",")
    values = {one: tensor(terms[0], 0), other: tensor(terms[1], 1)}
    query, key = (laid_out(each, values[each.node]) for each in queries_and_keys(node, nn.Module()))
    expected = torch.einsum(equation, *values.values())
    assert torch.allclose(query @ key.transpose(-2, -1), expected)


@pytest.mark.parametrize(
    "equation",
    ["bhij,bhje->bhie", "bhij,bjhe->bihe", "bjhe,bhij->bihe", "bhij,bje->bhie", "ij,je->ie"],
)
def test_einsums_are_read_as_weights_and_values(equation):
    node, one, other = einsum(equation)
    terms = equation.split("->")[0].split(",")
    values = {one: tensor(terms[0], 0), other: tensor(terms[1], 1)}
    weights = next(node for node, term in zip((one, other), terms, strict=True) if "i" in term)
    value, order = values_of(node, weights, nn.Module())
    found = (values[weights] @ laid_out(value, values[value.node])).permute(order)
    assert torch.allclose(found, torch.einsum(equation, *values.values()))


@pytest.mark.parametrize(
    "equation",
    [
        "bhid,bhjd->bhji",
        "bhid,bhjd->bij",
        "bid,bjd",
        "bhid,bhje->bhij",
        "bhid,bhid->bhi",
        "...d,...d->...",
    ],
)
def test_other_einsums_are_no_scores(equation):
    node, one, _ = einsum(equation)
    if equation == "bhid,bhjd->bhji":  # queries and keys have changed their roles
        assert queries_and_keys(node, nn.Module())[1].node is one
        return
    with pytest.raises(NotFused, match="einsum"):
        queries_and_keys(node, nn.Module())


@pytest.mark.parametrize("equation", ["bhij,bhje->bie", "bhij,bhie->bhje"])
def test_other_einsums_are_no_sums_of_values(equation):
    node, one, _ = einsum(equation)
    with pytest.raises(NotFused, match="einsum"):
        values_of(node, one, nn.Module())


def test_products_are_read_with_the_key_transposed():
    graph = torch.fx.Graph()
    q, k = graph.placeholder("q"), graph.placeholder("k")
    query, key = queries_and_keys(graph.call_function(torch.matmul, (q, k)), nn.Module())
    assert (query.node, key.node, key.is_transposed) == (q, k, True)
    turned = graph.call_method("transpose", (k, -1, -2))
    _, key = queries_and_keys(graph.call_function(torch.matmul, (q, turned)), nn.Module())
    assert (key.node, key.is_transposed) == (k, False)


def test_weights_on_the_other_side_are_left_alone():
    graph = torch.fx.Graph()
    w, v = graph.placeholder("w"), graph.placeholder("v")
    node = graph.call_function(torch.matmul, (v, w))
    with pytest.raises(NotFused, match="from the other side"):
        values_of(node, w, nn.Module())
