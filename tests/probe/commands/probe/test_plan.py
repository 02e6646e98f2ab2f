"""What a plan chooses where no option says it."""

import json
from dataclasses import replace

import pytest

from probe.capture.spec import CaptureSpec
from probe.commands.probe import ProbeRequest, plan as module
from probe.commands.probe.plan import plan, provenance


def test_a_store_by_default_stays_below_its_bound_and_says_what_it_leaves_out(model, monkeypatch, capsys):
    all_of_it = plan(ProbeRequest(model=model))
    assert (all_of_it.length, all_of_it.texts, len(all_of_it.kept.layers)) == (640, 2, 3)
    assert "store" not in capsys.readouterr().err
    monkeypatch.setattr(module, "STORE_BYTES", all_of_it.kept_bytes - 1)
    shorter = plan(ProbeRequest(model=model))
    assert (shorter.length, shorter.texts, len(shorter.kept.layers)) == (640, 0, 3)
    assert shorter.lengths == all_of_it.lengths
    assert (
        "hidden states are of the repeated word, 640 tokens each, in layers 0-2; --length, --texts"
        in capsys.readouterr().err
    )
    monkeypatch.setattr(module, "STORE_BYTES", 1)
    fewest = plan(ProbeRequest(model=model))
    assert (fewest.length, fewest.request.texts, list(fewest.kept.layers)) == (240, 0, [0, 2])
    assert "hidden states are of the repeated word, 240 tokens each, in layers 0, 2" in capsys.readouterr().err


@pytest.mark.parametrize("stated", [{"length": 640}, {"texts": 1}, {"spec": CaptureSpec(layers=((0, 3),))}])
def test_what_an_option_names_is_stored_whatever_it_takes_and_that_is_said(model, monkeypatch, stated, capsys):
    monkeypatch.setattr(module, "STORE_BYTES", 1)
    planned = plan(ProbeRequest(model=model, **stated))
    assert (planned.length, len(planned.kept.layers)) == (640, 3)
    size = f"the store takes about {planned.kept_bytes / 2**30:.1f} GiB; --layers, --positions or --store-dtype"
    assert size in capsys.readouterr().err


def test_a_run_in_stages_reads_its_loss_by_position_every_quarter_of_m_whatever_lengths_are_stated():
    planned = plan(ProbeRequest(methods="origin", lengths=(256, 1024)), 1024)
    assert planned.lengths == tuple(range(64, 1025, 64))
    assert json.loads(provenance(planned)["lengths"]) == [256, 1024]


def test_texts_are_stored_as_stated_in_stages_too():
    request = ProbeRequest(methods="origin")
    stored = [plan(replace(request, texts=texts), 1024).texts for texts in (None, 2, 0)]
    assert (stored, plan(request).texts) == ([0, 2, 0], 2)
