"""The names of methods: one short label, and every spelling that stands for a key."""

import pytest

from analysis.labels import setup_title
from orchestrator.errors import UserError
from orchestrator.load import load_setup
from orchestrator.methods import METHODS, SHORT, TITLES, known_method, method_key, method_label, method_title


def test_every_method_has_a_title_and_a_short_label() -> None:
    assert set(SHORT) == set(TITLES) == {*METHODS, "base"}
    assert len(set(SHORT.values())) == len(SHORT)


@pytest.mark.parametrize("key", list(SHORT))
def test_key_title_and_label_all_give_the_key(key: str) -> None:
    for name in (key, key.upper(), TITLES[key], TITLES[key].lower(), SHORT[key], SHORT[key].upper(), f" {key} "):
        assert method_key(name) == key


@pytest.mark.parametrize("name", ["trust-region", "Trust Region", "trb"])
def test_blanks_and_hyphens_stand_for_each_other(name: str) -> None:
    assert method_key(name) == "trust_region"


def test_an_unknown_method_is_its_own_name() -> None:
    assert method_key("Mine") == method_label("Mine") == method_title("Mine") == "Mine"


def test_a_method_that_is_not_asked_for_is_refused_with_a_suggestion() -> None:
    assert known_method("--methods", "TRB", ["vanilla", "trust_region"]) == "trust_region"
    for name, near in (("TRBB", "TRB"), ("vanila", "vanilla"), ("trust_regon", "trust_region")):
        with pytest.raises(UserError) as error:
            known_method("--methods", name, ["vanilla", "trust_region"])
        assert str(error.value) == f"--methods: '{name}' — one of Vanilla, TRB (did you mean {near}?)"
    with pytest.raises(UserError, match=r"'skd' — one of Vanilla, TRB$"):
        known_method("--methods", "skd", ["vanilla", "trust_region"])


def test_a_setups_own_title_is_its_heading() -> None:
    setups = {"mine": load_setup("arithmetic", overrides=["title=My pair"]), "shipped": load_setup("arithmetic")}
    assert setup_title("mine", setups) == "My pair"
    assert setup_title("arithmetic") == "Arithmetic"
    assert setup_title("other") == "other"
    assert setup_title("one", {"one": setups["shipped"], "two": setups["shipped"]}) == "Arithmetic (one)"
    assert setup_title("bare", {"bare": load_setup("arithmetic", overrides=["title=''"])}) == "bare"
