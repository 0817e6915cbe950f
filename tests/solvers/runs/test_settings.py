"""One schema: the paper's defaults, the preset, and a faithful round trip through JSON."""

from typing import Any

import pytest

from sparse_ncp.solvers import METHODS, Settings, Stop


def test_with_only_rank_and_method_everything_is_as_in_the_paper() -> None:
    settings = Settings(rank=20, method="apg")
    assert (settings.alpha, settings.beta, settings.init) == (1e-6, 0.0, "random")
    assert (settings.stop.criterion, settings.stop.tolerance, settings.stop.patience) == ("relative_error", 1e-8, 1)
    assert not settings.rescale
    assert settings.sparsity_threshold == 1e-3
    assert {name: method.penalty for name, method in METHODS.items()} == {
        "mu": "l1",
        "als": "l1",
        "hals": "l1",
        "apg": "l1",
        "anls-as": "l1_squared",
        "anls-bpp": "l1_squared",
        "anls-hybrid": "l1",
    }


def test_the_recommended_setting_is_the_preset() -> None:
    settings = Settings.recommended(20, beta=0.5)
    assert settings == Settings.model_validate({"preset": "recommended", "rank": 20, "beta": 0.5})
    assert (settings.method, settings.penalty, settings.rescale) == ("anls-bpp", "l1", True)
    assert settings.init == "random_scaled"
    assert (settings.stop.criterion, settings.stop.tolerance, settings.stop.patience) == ("relative_objective", 1e-6, 5)


def test_what_is_given_wins_over_the_preset() -> None:
    settings = Settings.recommended(20, method="hals", stop={"max_seconds": 5})
    assert settings.method == "hals"
    assert settings.stop.max_seconds == 5
    assert settings.stop.patience == 5
    assert Settings.recommended(20, method="hals", stop=Stop(max_seconds=5)) == settings


@pytest.mark.parametrize(
    "fields", [{"method": m} for m in METHODS] + [{"preset": "recommended"}, {"method": "hals", "beta": [1, 2]}]
)
def test_settings_survive_json(fields: dict[str, Any]) -> None:
    settings = Settings.model_validate({"rank": 3, **fields})
    assert Settings.model_validate_json(settings.model_dump_json()) == settings
    assert Settings.model_validate(settings.model_dump()) == settings


def test_the_schema_lists_the_registry() -> None:
    assert Settings.model_json_schema()["properties"]["method"]["enum"] == list(METHODS)


def test_settings_cannot_change() -> None:
    with pytest.raises(ValueError, match="frozen"):
        Settings(rank=2, method="mu").rank = 3  # type: ignore[misc]


def test_what_an_older_version_stored_lacks_what_it_did_not_know() -> None:
    """The preset must not fill what was off when the settings were stored whole."""
    settings = Settings.recommended(3, beta=0.1)
    later = {"sparsity", "extrapolate", "regrow", "starts", "starts_mode", "diagnose"}
    old = Settings.from_stored(settings.model_dump(mode="json", exclude=later))
    assert (old.preset, old.regrow, old.starts, old.extrapolate) == ("recommended", False, 1, False)
    off = {"regrow": False, "starts": 1, "extrapolate": False, "diagnose": False}
    assert old == settings.model_copy(update=off)
    assert Settings.from_stored(settings.model_dump(mode="json")) == settings
