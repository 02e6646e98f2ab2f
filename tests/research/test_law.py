"""Judging the stored passes of several runs."""

from dataclasses import replace

import numpy as np
import pytest

from probe.commands.predict import PredictRequest
from probe.commands.predict.run import FOLDER, JOURNAL, PassKey, plan
from probe.experiment.journal import Journal
from research.law.run import stored_halves

WHOLE, CUT = "leaky-rerope:k=2", "self-extend:group=2"


@pytest.fixture(scope="module")
def planned():
    request = PredictRequest(
        model="default", methods="origin", configs=(WHOLE, CUT), check=True, lengths=(384, 512), samples=2
    )
    return plan(request)


def written(folder, planned, keys, value, **settings):
    """A folder whose journal has the value for these passes and texts."""
    journal = Journal(folder / FOLDER / JOURNAL, {**planned.settings, **settings}, columns=PassKey)
    for key in keys:
        journal.add(PassKey(*key), {"nll": [value]})
    return folder


def every(planned, text):
    return [(*key, text) for key in planned.passes]


@pytest.mark.parametrize(("judged", "fit_text", "test_text"), [("odd", 0, 1), ("even", 1, 0)])
def test_one_half_of_the_texts_fits_and_the_other_judges(tmp_path, planned, judged, fit_text, test_text):
    folders = [
        written(tmp_path / str(text), planned, every(planned, text), float(text), device=f"device {text}")
        for text in (0, 1)
    ]
    chosen, fit, test = stored_halves(planned, folders, judged)
    assert (chosen.methods, len(chosen.texts)) == (planned.methods, 1)
    assert fit.keys() == test.keys() == planned.passes.keys()
    assert {
        (float(one.item()), float(other.item())) for one, other in zip(fit.values(), test.values(), strict=True)
    } == {(fit_text, test_text)}
    assert np.array_equal(chosen.texts[0], planned.texts[test_text])


def test_the_first_folder_that_has_a_pass_gives_it_and_an_unfinished_config_is_left_out(tmp_path, planned, capsys):
    rest = [key for key in every(planned, 0) + every(planned, 1) if key != (CUT, planned.trained_length, 1)]
    first = written(tmp_path / "first", planned, every(planned, 0), 1.0)
    chosen, fit, test = stored_halves(planned, [first, written(tmp_path / "rest", planned, rest, 2.0)], "odd")
    assert (set(chosen.methods), {*fit}) == ({"origin", WHOLE}, {*planned.passes})
    assert ({value.item() for value in fit.values()}, {value.item() for value in test.values()}) == ({1.0}, {2.0})
    assert CUT in capsys.readouterr().out


def test_other_texts_are_refused(tmp_path, planned):
    other = replace(planned, texts=planned.texts[::-1])
    folder = written(tmp_path, other, every(other, 0), 1.0)
    with pytest.raises(ValueError, match="other documents"):
        stored_halves(planned, [folder], "odd")
