import inspect
from itertools import count
from threading import Event, Thread

import pytest

from tinytorch.models.adapter import entering_layers, stamping_layers


class Layer:
    def forward(self, x, *, factor=1):
        """Multiply."""
        return x * factor

    def forward_with_cache(self, x):
        return self.forward(x)


class Failing:
    def forward(self, x):
        raise KeyError("on purpose")


class Net:
    def __init__(self, *layers):
        self.layers = layers

    def forward(self, x):
        for layer in self.layers:
            x = layer.forward(x)
        return x


class Slotted:
    __slots__ = ()

    def forward(self, x):
        return x


def modules(net):
    return {"": net, **{str(index): layer for index, layer in enumerate(net.layers)}}


def events(net, x=1, **settings):
    """Give what is reported of one call of a net."""
    seen = []

    def leave(path, error, output):
        seen.append(("leave", path, type(error).__name__ if error else output))

    watching = entering_layers(
        modules(net), lambda path: seen.append(("enter", path)), leave, **settings
    )
    with watching:
        try:
            net.forward(x)
        except KeyError:
            seen.append(("raised",))
    return seen


def is_untouched(net):
    return not any(
        "forward" in vars(each) for each in (net, *net.layers) if hasattr(each, "__dict__")
    )


def test_every_call_is_stamped_inner_ones_first():
    net, ticks = Net(Layer(), Layer()), count()
    with stamping_layers(modules(net), lambda: next(ticks)) as stamps:
        net.forward(3)
    assert stamps == [("0", 1, 2), ("1", 3, 4), ("", 0, 5)]


def test_stamps_collect_over_calls_and_stop_with_the_block():
    net, ticks = Net(Layer()), count()
    with stamping_layers(modules(net), lambda: next(ticks)) as stamps:
        net.forward(3)
        net.forward(3)
    net.forward(3)
    assert [path for path, _, _ in stamps] == ["0", "", "0", ""]


def test_a_call_that_raises_is_stamped_too_and_the_error_passes():
    net = Net(Layer(), Failing())
    with stamping_layers(modules(net), lambda: 0) as stamps, pytest.raises(KeyError):
        net.forward(3)
    assert [path for path, _, _ in stamps] == ["0", "1", ""]
    assert is_untouched(net)


def test_entering_and_leaving_come_in_pairs_with_the_output():
    assert events(Net(Layer()), 7) == [
        ("enter", ""),
        ("enter", "0"),
        ("leave", "0", 7),
        ("leave", "", 7),
    ]


def test_entering_and_leaving_come_in_pairs_also_when_a_layer_raises():
    assert events(Net(Layer(), Failing())) == [
        ("enter", ""),
        ("enter", "0"),
        ("leave", "0", 1),
        ("enter", "1"),
        ("leave", "1", "KeyError"),
        ("leave", "", "KeyError"),
        ("raised",),
    ]


def test_results_arguments_and_signatures_are_those_of_the_layer():
    layer = Layer()
    with stamping_layers({"": layer}, lambda: 0):
        assert layer.forward(3, factor=5) == 15
        assert inspect.signature(layer.forward) == inspect.signature(Layer().forward)
        assert layer.forward.__doc__ == "Multiply."


def test_nothing_stays_behind():
    net = Net(Layer(), Layer())
    before = [dict(vars(each)) for each in (net, *net.layers)]
    with stamping_layers(modules(net), lambda: 0):
        assert not is_untouched(net)
    assert [vars(each) for each in (net, *net.layers)] == before


@pytest.mark.parametrize("error", [KeyError, KeyboardInterrupt, GeneratorExit])
def test_nothing_stays_behind_when_the_block_raises(error):
    net = Net(Layer())
    with pytest.raises(error), stamping_layers(modules(net), lambda: 0):
        raise error
    assert is_untouched(net)


def test_a_forward_of_the_instance_is_watched_and_put_back():
    layer = Layer()
    own = layer.forward = lambda x: -x
    with stamping_layers({"": layer}, lambda: 0) as stamps:
        assert layer.forward(3) == -3
    assert stamps == [("", 0, 0)]
    assert layer.forward is own


def test_watching_twice_reports_to_both_and_leaves_nothing():
    net = Net(Layer())
    with stamping_layers(modules(net), lambda: 0) as outer:
        net.forward(1)
        with stamping_layers(modules(net), lambda: 0) as inner:
            net.forward(1)
        net.forward(1)
    assert (len(outer), len(inner)) == (6, 2)
    assert is_untouched(net)


def test_a_layer_under_two_names_is_left_as_it_was():
    layer = Layer()
    with stamping_layers({"a": layer, "b": layer}, lambda: 0) as stamps:
        layer.forward(1)
    assert [path for path, _, _ in stamps] == ["a", "b"]
    assert "forward" not in vars(layer)


def test_a_method_of_another_name_counts_when_it_is_asked_for():
    layer = Layer()
    with stamping_layers({"": layer}, lambda: 0, methods=("forward", "forward_with_cache")) as both:
        layer.forward_with_cache(1)
    with stamping_layers({"": layer}, lambda: 0) as one:
        layer.forward_with_cache(1)
    assert (len(both), len(one)) == (2, 1)
    assert vars(layer) == {}


def test_of_several_methods_the_first_that_is_there_counts():
    layer = Layer()
    methods = [("missing", "forward_with_cache", "forward")]
    with stamping_layers({"": layer}, lambda: 0, methods=methods) as stamps:
        layer.forward(1)
        assert stamps == []
        layer.forward_with_cache(1)
    assert stamps == [("", 0, 0)]
    assert vars(layer) == {}


@pytest.mark.parametrize("unwatchable", [Slotted(), len, lambda x: x, None, object()])
def test_what_cannot_be_watched_is_left_alone(unwatchable):
    net = Net(Layer())
    with stamping_layers({"x": unwatchable, "0": net.layers[0]}, lambda: 0) as stamps:
        net.forward(1)
    assert stamps == [("0", 0, 0)]


def test_a_failure_while_wrapping_undoes_what_was_wrapped():
    class Odd:
        @property
        def forward(self):
            raise RuntimeError("not now")

    layer = Layer()
    with pytest.raises(RuntimeError), stamping_layers({"a": layer, "b": Odd()}, lambda: 0):
        pass
    assert vars(layer) == {}


def test_a_second_thread_waits_and_nothing_stays_patched():
    net = Net(Layer(), Layer())
    inside, leave = Event(), Event()
    order = []

    def first():
        with stamping_layers(modules(net), lambda: 0):
            inside.set()
            leave.wait(5)
            order.append("first is done")

    def second():
        inside.wait(5)
        with stamping_layers(modules(net), lambda: 0):
            order.append("second begins")

    threads = [Thread(target=first), Thread(target=second)]
    for thread in threads:
        thread.start()
    inside.wait(5)
    leave.set()
    for thread in threads:
        thread.join(5)
    assert order == ["first is done", "second begins"]
    assert is_untouched(net)
