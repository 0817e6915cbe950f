"""One schema: the paper's defaults, the preset, and a faithful round trip through JSON."""

import pytest

from solvers import METHODS, Settings, Stop


def test_with_only_rank_and_method_everything_is_as_in_the_paper():
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
    }


def test_the_recommended_setting_is_the_preset():
    settings = Settings.recommended(20, beta=0.5)
    assert settings == Settings.model_validate({"preset": "recommended", "rank": 20, "beta": 0.5})
    assert (settings.method, settings.penalty, settings.rescale) == ("anls-bpp", "l1", True)
    assert settings.init == "random_scaled"
    assert (settings.stop.criterion, settings.stop.tolerance, settings.stop.patience) == ("relative_objective", 1e-6, 5)


def test_what_is_given_wins_over_the_preset():
    settings = Settings.recommended(20, method="hals", stop={"max_seconds": 5})
    assert settings.method == "hals"
    assert settings.stop.max_seconds == 5
    assert settings.stop.patience == 5
    assert Settings.recommended(20, method="hals", stop=Stop(max_seconds=5)) == settings


@pytest.mark.parametrize(
    "fields", [{"method": m} for m in METHODS] + [{"preset": "recommended"}, {"method": "hals", "beta": [1, 2]}]
)
def test_settings_survive_json(fields):
    settings = Settings.model_validate({"rank": 3, **fields})
    assert Settings.model_validate_json(settings.model_dump_json()) == settings
    assert Settings.model_validate(settings.model_dump()) == settings


def test_the_schema_lists_the_registry():
    assert Settings.model_json_schema()["properties"]["method"]["enum"] == list(METHODS)


def test_settings_cannot_change():
    with pytest.raises(ValueError, match="frozen"):
        Settings(rank=2, method="mu").rank = 3
