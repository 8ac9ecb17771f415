"""What docstrings of several styles say to the model."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from midthought import tool


def google(city: str, days: int = 1) -> str:
    """Gets the weather
    of a city.

    More words.

    Args:
        - city (str): Name of the city,
            in English.
        days (int, optional): Number of days. Default: 1.

    Returns:
        str: Text.
    """
    return ""


def google_without_a_line_between(city: str, days: int = 1) -> str:
    """Gets the weather of a city.
    Args:
        city: Name of the city, in English.
        days:
            Number of days.
            Default: 1.
    Raises:
        ValueError: city: none.
    """
    return ""


def numpy(city: str, days: int = 1) -> str:
    """Gets the weather of a city.

    Parameters
    ----------
    city : str
        Name of the city,
        in English.
    days : int, optional
        Number of days. Default: 1.

    Returns
    -------
    str
        city : Text.
    """
    return ""


def rest(city: str, days: int = 1) -> str:
    """Gets the weather of a city.

    :param city: Name of the city,
        in English.
    :param int days: Number of days. Default: 1.
    :type city: str
    :returns: Text.
    """
    return ""


def rest_without_a_line_between(city: str, days: int = 1) -> str:
    """Gets the weather of a city.
    :param city: Name of the city, in English.
    :param days: Number of days. Default: 1.
    :return: Text.
    """
    return ""


def epytext(city: str, days: int = 1) -> str:
    """
    Gets the weather of a city.

    @param city: Name of the city, in English.
    @type city: str
    @param days: Number of days. Default: 1.
    @return: Text.
    """
    return ""


@pytest.mark.parametrize(
    "function",
    [google, google_without_a_line_between, numpy, rest, rest_without_a_line_between, epytext],
    ids=lambda function: function.__name__,
)
def test_purpose_and_parameters_of_every_style(function: Callable[..., str]) -> None:
    definition = tool(function).definition
    assert definition.description == "Gets the weather of a city."
    assert {each.name: each.description for each in definition.parameters} == {
        "city": "Name of the city, in English.",
        "days": "Number of days. Default: 1.",
    }
