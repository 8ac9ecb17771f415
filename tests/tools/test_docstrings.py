"""What docstrings of several styles say to the model."""

from __future__ import annotations

from midthought import tool

STYLES = [
    """Gets the weather
    of a city.

    More words.

    Args:
        - city (str): Name of the city,
            in English.
        days (int, optional): Number of days. Default: 1.

    Returns:
        str: Text.
    """,
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
    """,
    """Gets the weather of a city.
    :param city: Name of the city,
        in English.
    :param int days: Number of days. Default: 1.
    :type city: str
    :returns: Text.
    """,
    """
    Gets the weather of a city.

    @param city: Name of the city, in English.
    @type city: str
    @param days: Number of days. Default: 1.
    @return: Text.
    """,
]
"""Google's, NumPy's, reST's, Epytext's."""


def test_purpose_and_parameters_of_every_style() -> None:
    def weather(city: str, days: int = 1) -> str:
        return ""

    for docstring in STYLES:
        weather.__doc__ = docstring
        definition = tool(weather).definition
        assert definition.description == "Gets the weather of a city."
        assert {each.name: each.description for each in definition.parameters} == {
            "city": "Name of the city, in English.",
            "days": "Number of days. Default: 1.",
        }
