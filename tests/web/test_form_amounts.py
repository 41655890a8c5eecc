"""Amounts as people write them."""

from __future__ import annotations

from contextlib import suppress

import pytest
from django.core.exceptions import ValidationError
from django.utils import translation
from hypothesis import given
from hypothesis import strategies as st

from scheduling.forms.amounts import CORES, GIB, GPU, INTEGER, MINUTES, AmountField, Unit


@pytest.mark.parametrize("unit", [GPU, CORES, GIB, MINUTES, INTEGER])
@given(amount=st.integers(0, 10**9), language=st.sampled_from(["en", "ru"]))
def test_an_amount_that_is_written_is_read_back(unit: Unit, amount: int, language: str) -> None:
    field = AmountField(unit=unit, minimum=0, maximum=10**9)
    with translation.override(language):
        assert field.clean(field.prepare_value(amount)) == amount


@given(text=st.text(max_size=60))
def test_any_text_is_an_amount_within_the_limits_or_an_error(text: str) -> None:
    field = AmountField(unit=GPU, minimum=50, maximum=1000)
    with suppress(ValidationError):
        amount = field.clean(text)
        assert amount is None or 50 <= amount <= 1000
