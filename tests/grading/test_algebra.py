"""Which expressions are computed at all."""

import pytest

from orchestrator.grading.algebra import parsed


@pytest.mark.parametrize(
    "text",
    [
        r"9^{9^{9}}",
        r"10^{10^{10^{10}}}",
        r"\frac{3^{\left(3^{\left(3^{3^{5}}\right)} - 4\right)} - 5}{16}",
        r"2^{100000000}",
        r"x^{10^{8}}",
        r"(9^9)^{9^9}",
        r"(1+1)^{10^{9}}",
        r"0.5^{10^{10}}",
        r"\sqrt{9^{9^{9}}}",
        r"99999999!",
        r"(10^{13})! \bmod 4",
        r"{10^{13}}!",
        r"((9!)!)!",
        r"\sum_{k=1}^{10^{14}} \frac{1}{k^{5}}",
        r"\sum_{k=-10^{14}}^{0} k",
        r"\prod_{k=1}^{1000000000} k",
        "(" * 3000 + "9^{9^{9}}",
    ],
)
def test_numbers_beyond_all_golds_are_unreadable(text: str) -> None:
    assert parsed(text) is None


@pytest.mark.parametrize(
    "text",
    [
        r"2^{2^{5}}+1",
        r"2^{1009}",
        r"3^{3^{3}}",
        r"e^{e^{x}}",
        r"2^{2^{n}}",
        r"(-1)^{10^{10}}",
        r"\frac{10^{2024}-1}{9}",
        r"2024!",
        r"(n+1)!",
        r"x^{2024}+1",
        r"\sum_{k=1}^{\infty}\frac{1}{k^2}",
        r"\sum_{k=1}^{n} k^{2}",
        r"6.02 \times 10^{23}",
    ],
)
def test_large_numbers_of_golds_are_computed(text: str) -> None:
    assert parsed(text) is not None
