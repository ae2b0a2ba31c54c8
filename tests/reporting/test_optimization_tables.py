from reported_optimizations import best_is_a_stack, only_time
from terminal import shown

from tinytorch.reporting.optimization import attempt_table, front_table, suggestion_table


def row(text, name):
    (found,) = [line for line in text.splitlines() if line.startswith(f"{name} ")]
    return " ".join(found.removeprefix(name).split())


def test_an_attempt_has_its_numbers():
    text = shown(attempt_table(best_is_a_stack()), width=140)
    assert row(text, "int8-dynamic  ") == (
        "better 1.80x 1.60x 1.59x to 1.61x 50.0% 25.0% 74.90% 1.50 s 2.50 s"
    )


def test_the_best_comes_first_and_what_was_never_ranked_last():
    labels = [each.plain for each in attempt_table(best_is_a_stack()).labels]
    assert labels[0] == "int8-dynamic + compiled-kernels"
    assert labels[-1] == "fewer-channels"
    assert len(labels) == 11


def test_a_hundred_columns_show_all_but_what_the_picture_has():
    lines = shown(attempt_table(best_is_a_stack()), width=100).splitlines()
    assert max(map(len, lines)) <= 100
    heads = lines[0].split()
    assert heads[:6] == ["attempt", "outcome", "predicted", "speedup", "memory", "size"]


def test_what_is_not_known_is_a_dash():
    text = shown(attempt_table(only_time()), width=140)
    assert row(text, "fused-layers") == "better - 2.00x 1.99x to 2.01x - - - 2.50 s"


def test_the_front_has_shares_of_the_model_as_it_is():
    text = shown(front_table(best_is_a_stack()))
    assert row(text, "int8-dynamic + compiled-kernels") == "40.0% 50.0% 25.0% -0.15 points"
    assert "channels-last" not in text


def test_the_model_as_it_is_may_be_on_the_front():
    slower = best_is_a_stack(attempts=best_is_a_stack().attempts[3:4])
    text = shown(front_table(slower))
    assert row(text, "as it is") == "100.0% 100.0% 100.0% -"


def test_a_suggestion_has_its_prediction_beside_the_measurement():
    text = shown(suggestion_table(best_is_a_stack()))
    words = "int8-dynamic 1.80x (1.20x to 2.40x) 1.60x better as predicted"
    assert row(text, "Hold weights in fewer bits") == words
    assert row(text, "Write weights as products of smaller ones") == "low-rank - - inaccurate"
    assert "Work on more examples" not in text  # nothing here does it


def test_a_suggestion_that_nobody_tried_says_so():
    text = shown(suggestion_table(best_is_a_stack(attempts=())))
    assert row(text, "Hold weights in fewer bits").endswith("- not tried")


def test_a_column_that_says_nothing_is_left_out():
    assert "once" not in shown(attempt_table(only_time()))
    assert "once" in shown(attempt_table(best_is_a_stack()), width=140)
