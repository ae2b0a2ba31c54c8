"""What a model may be called with: the same claims in both frameworks."""

from collections import UserDict, namedtuple

import numpy as np
import pytest
from called_models import FRAMEWORKS
from parts import require_part

from tinytorch import Batches, Workload
from tinytorch.errors import BackendError, SettingError
from tinytorch.models.adapter import adapter_for
from tinytorch.models.inputs import ENOUGH_EXAMPLES, MOST_BATCHES
from tinytorch.models.workload import resize_workload


@pytest.fixture(params=FRAMEWORKS)
def kit(request):
    return FRAMEWORKS[request.param]()


def numbers(rows=4, seed=0):
    return np.random.default_rng(seed).standard_normal((rows, 6)).astype(np.float32)


def plain(tensor):
    return np.asarray(tensor.data)


def same(found, expected):
    return np.array_equal(plain(found), plain(expected))


# ---------------------------------------------------------------- the forms of one call


def test_a_tuple_is_the_arguments(kit):
    x, other = kit.tensor(numbers()), kit.tensor(numbers(seed=1))
    work = Workload("added", kit.Added(), (x, other))
    assert (work.inputs, work.keywords, work.notes) == ((x, other), {}, ())


def test_a_tensor_is_one_argument(kit):
    x = kit.tensor(numbers())
    work = Workload("added", kit.Added(), x)
    assert len(work.inputs) == 1
    assert work.inputs[0] is x


def test_a_list_is_one_argument(kit):
    parts = [kit.tensor(numbers()), kit.tensor(numbers(seed=1))]
    work = Workload("summed", kit.Summed(), parts)
    assert work.inputs == (parts,)
    assert tuple(work.run().shape) == (4, 4)


@pytest.mark.parametrize("kind", [dict, UserDict])
def test_a_dictionary_is_the_arguments_by_name(kit, kind):
    x, other = kit.tensor(numbers()), kit.tensor(numbers(seed=1))
    model = kit.Added()
    work = Workload("added", model, kind(other=other, x=x))
    assert work.inputs == ()
    assert list(work.keywords) == ["other", "x"]
    assert same(work.run(), Workload("added", model, (x, other)).run())


def test_a_batch_encoding_is_the_arguments_by_name():
    transformers = require_part("transformers")
    torch = require_part("torch")
    encoded = transformers.BatchEncoding({"x": torch.ones(2, 6)})
    assert set(Workload("added", FRAMEWORKS["pytorch"]().Added(), encoded).keywords) == {"x"}


def test_a_named_tuple_is_one_argument(kit):
    pair = namedtuple("pair", "left right")(kit.tensor(numbers()), kit.tensor(numbers()))
    assert Workload("summed", kit.Summed(), pair).inputs == (pair,)


def test_keywords_stand_beside_a_tuple_and_not_beside_a_dictionary(kit):
    x, other = kit.tensor(numbers()), kit.tensor(numbers(seed=1))
    work = Workload("added", kit.Added(), (x,), keywords={"other": other})
    assert (work.inputs, dict(work.keywords)) == ((x,), {"other": other})
    with pytest.raises(SettingError, match="keywords= beside it; put 'other' into"):
        Workload("added", kit.Added(), {"x": x}, keywords={"other": other})


@pytest.mark.parametrize("inputs", [None, iter([1]), {1: 2}], ids=["None", "iterator", "numbers"])
def test_what_one_call_cannot_get_is_an_error(kit, inputs):
    with pytest.raises(SettingError, match="the inputs of workload 'added'"):
        Workload("added", kit.Added(), inputs)


def test_a_data_set_is_no_batch(kit):
    with pytest.raises(SettingError, match="pass a DataLoader"):
        Workload("added", kit.Added(), kit.loader(numbers()).dataset)


# ---------------------------------------------------------------- many batches


def test_the_first_of_several_batches_is_the_example(kit):
    first, second = kit.tensor(numbers()), kit.tensor(numbers(seed=1))
    work = Workload("added", kit.Added(), Batches([{"x": first}, (second,)]))
    assert work.keywords["x"] is first
    assert len(work.notes) == 1
    assert Workload("added", kit.Added(), Batches([first])).notes == ()


def test_the_first_batch_of_a_loader_is_the_example_without_its_labels(kit):
    data = numbers(10)
    work = Workload("added", kit.Added(), kit.loader(data, np.arange(10)))
    assert len(work.inputs) == 1
    assert np.array_equal(plain(work.inputs[0]), data[:4])
    assert len(work.notes) == 1


def test_a_loader_that_shuffles_gives_the_same_example_each_time_and_stays_as_it_was(kit):
    loader = kit.loader(numbers(40), shuffle=True)
    first, second = (Workload("added", kit.Added(), loader) for _ in range(2))
    assert same(first.inputs[0], second.inputs[0])
    assert getattr(loader, "epoch", 0) == 0


def test_reading_a_loader_draws_no_random_numbers_of_the_program():
    torch = require_part("torch")
    kit = FRAMEWORKS["pytorch"]()
    model, loader = kit.Added(), kit.loader(numbers(40), shuffle=True)
    before = torch.get_rng_state()
    Workload("added", model, loader)
    assert torch.equal(torch.get_rng_state(), before)


def test_an_empty_loader_and_no_batches_are_errors(kit):
    with pytest.raises(SettingError, match="gives no batch"):
        Workload("added", kit.Added(), kit.loader(numbers(0)))
    with pytest.raises(SettingError, match="without a batch"):
        Batches([])


def test_dictionaries_of_a_loader_lose_what_the_model_does_not_take():
    torch = require_part("torch")
    kit = FRAMEWORKS["pytorch"]()
    data = [{"x": torch.ones(6), "label": 1, "other": torch.ones(6)} for _ in range(8)]
    loader = torch.utils.data.DataLoader(data, batch_size=4)
    work = Workload("added", kit.Added(), loader, calibration=loader)
    assert set(work.keywords) == {"x", "other"}
    assert [set(batch) for batch in work.calibration] == [{"x", "other"}] * 2
    wrong = torch.utils.data.DataLoader([{"label": 1}])
    with pytest.raises(SettingError, match="gives 'label', and the model takes 'other', 'x'"):
        Workload("added", kit.Added(), wrong)


# ---------------------------------------------------------------- calibration


def test_calibration_holds_batches_of_every_form(kit):
    x, other = kit.tensor(numbers()), kit.tensor(numbers(seed=1))
    batches = [x, (x, other), {"x": x, "other": other}]
    work = Workload("added", kit.Added(), (x,), calibration=batches)
    calls = work.calibration_calls
    assert [len(each.arguments) for each in calls] == [1, 2, 0]
    assert [list(each.keywords) for each in calls] == [[], [], ["x", "other"]]
    again = Workload("added", kit.Added(), (x,), calibration=work.calibration)
    assert again.calibration == work.calibration


def test_a_tensor_or_a_dictionary_is_one_batch_of_calibration(kit):
    x = kit.tensor(numbers())
    for one in (x, {"x": x}):
        assert len(Workload("added", kit.Added(), (x,), calibration=one).calibration) == 1


def test_keywords_of_the_example_go_with_batches_like_it(kit):
    x, other = kit.tensor(numbers()), kit.tensor(numbers(seed=1))
    work = Workload("a", kit.Added(), (x,), calibration=[(x,)], keywords={"other": other})
    assert dict(work.calibration_calls[0].keywords) == {"other": other}


def test_calibration_takes_the_first_batches_of_a_loader_and_says_so(kit):
    whole = Workload("a", kit.Added(), kit.tensor(numbers()), calibration=kit.loader(numbers(10)))
    assert [batch[0].shape[0] for batch in whole.calibration] == [4, 4, 2]
    assert whole.notes == ()
    many = kit.loader(numbers(4 * MOST_BATCHES + 4))
    work = Workload("added", kit.Added(), kit.tensor(numbers()), calibration=many)
    assert len(work.calibration) == MOST_BATCHES
    assert len(work.notes) == 1


def test_calibration_stops_at_enough_examples():
    kit = FRAMEWORKS["core"]()
    loader = kit.loader(numbers(3 * ENOUGH_EXAMPLES))
    loader.batch_size = ENOUGH_EXAMPLES
    work = Workload("added", kit.Added(), kit.tensor(numbers()), calibration=loader)
    assert len(work.calibration) == 1


@pytest.mark.parametrize("calibration", [None, "text", 3])
def test_what_holds_no_batches_is_an_error(kit, calibration):
    with pytest.raises(SettingError, match="calibration of workload 'added'"):
        Workload("added", kit.Added(), kit.tensor(numbers()), calibration=calibration)


# ---------------------------------------------------------------- sizes, and devices


def test_inputs_by_name_are_resized_and_keep_their_class(kit):
    x = kit.tensor(numbers())
    work = Workload("added", kit.Added(), {"x": x, "other": x})
    larger = resize_workload(work, 0, 7)
    assert {tuple(each.shape) for each in larger.keywords.values()} == {(7, 6)}


@pytest.mark.parametrize("form", ["tensor", "tuple", "dictionary", "mixed", "beside"])
def test_the_hint_for_inputs_elsewhere_works_when_pasted(form):
    torch = require_part("torch")
    kit = FRAMEWORKS["pytorch"]()
    model, x = kit.Added().to("meta"), torch.ones(2, 6)
    given = {
        "tensor": {"x": x},
        "tuple": {"inputs": (x, x)},
        "dictionary": {"inputs": {"x": x, "other": x}},
        "mixed": {"inputs": (x, None)},
        "beside": {"inputs": (x,), "keywords": {"other": x}},
    }[form]

    def workload(given):
        inputs, keywords = given.get("inputs", given.get("x")), given.get("keywords", {})
        return Workload("added", model, inputs, keywords=keywords)

    with pytest.raises(BackendError) as raised:
        workload(given).device  # noqa: B018 - it raises
    line = str(raised.value).partition("move the inputs: ")[2]
    exec(line, {}, given)
    assert workload(given).device == "meta"


# ---------------------------------------------------------------- what models return


@pytest.mark.parametrize("kind", ["AsDictionary", "AsDataclass"])
def test_tensors_in_dictionaries_and_dataclasses_are_found(kit, kind):
    x = kit.tensor(numbers())
    work = Workload("model", getattr(kit, kind)(), {"x": x})
    adapter = adapter_for(work.model, work.arguments)
    output = work.run()
    assert adapter.arrays(output)[0].shape == (4, 4)
    assert len(adapter.digest(output)) == 1
    assert adapter.scalar_loss(output).shape == ()
