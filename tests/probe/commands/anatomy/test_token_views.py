"""Views of a text token by token: windows, words, and nothing that a text can break."""

import pytest
from anatomized import typed_tokens as tokens

from mesa.errors import Refused
from probe.commands.anatomy.page import SHOWN, attention_view, loss_view, token_losses


def test_the_tokens_that_break_are_marked_and_counted():
    html = loss_view(tokens(20))
    assert "inside M 1.00 under origin and 1.00 under mesa; beyond M 1.33 under origin and 1.00 under mesa" in html
    assert "1 of 12 tokens beyond M lose 2 nats or more over their loss under mesa." in html
    assert html.count(' broken"') == 1
    assert html.count("|M = 8|") == 2
    assert "beyond M" not in loss_view(tokens(8))  # nothing is


def test_a_changed_head_is_measured():
    assert "differs by 70%" in attention_view(tokens(20))
    assert "differs by 0%" in attention_view(tokens(20), "origin")


@pytest.mark.parametrize("view", [loss_view, attention_view])
def test_texts_are_escaped_and_long_ones_cut(view):
    html = view(tokens(2 * SHOWN, 600, "</script><b onload=x>"))
    assert "<b onload" not in html
    assert html.count("</script>") == (view is attention_view)
    assert html.count("onload") == 2 * SHOWN
    assert "… positions " in html


def test_losses_that_are_not_one_a_token_are_refused():
    with pytest.raises(Refused, match="3 losses under rerope of 3 tokens; give one for each but the first"):
        token_losses(["<bos>", "A", "B"], {"origin": [2.0, 6.5], "rerope": [0.0, 2.0, 1.5]}, 2)
