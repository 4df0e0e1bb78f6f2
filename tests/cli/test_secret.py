"""A secret that was used shows nowhere, in whatever form a text carries it."""

import json
import urllib.parse

import pytest

from opsctl.secret import Secret, mask

VALUE = 'p"a\\ss/wörd&1'


@pytest.mark.parametrize(
    "text",
    [
        VALUE,
        json.dumps({"key": VALUE}),
        json.dumps({"key": VALUE}, ensure_ascii=False),
        "https://host/?key=" + urllib.parse.quote(VALUE, safe=""),
        f"{Secret(VALUE)} {Secret(VALUE)!r}",
    ],
)
def test_every_form_is_masked(text: str) -> None:
    assert Secret(VALUE).reveal() == VALUE
    shown = mask(text)
    for piece in ("ss/w", "ss%2Fw", "rd&1", "rd%261"):
        assert piece not in shown
    assert "***" in shown
