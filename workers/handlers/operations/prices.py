"""Compute the dollars that a call of a model costs, with the price table of the library genai-prices."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from decimal import Decimal
from typing import Any, NamedTuple, TypedDict, Unpack

from coordinator.errors import BadOption
from coordinator.model.policies.budget import Amount, UnknownPrice

INSTALL = "pip install 'run-coordinator[prices]'"
# A gateway charges the price of the provider whose name follows, as in openrouter/openai/gpt-4o.
_GATEWAYS = ("openrouter",)
_SPEND_ADVICE = "count its dollars with run.spend(usd=…), pass provider=…, or install a newer genai-prices"


class ModelUsage(TypedDict, total=False):
    """The keyword arguments of `run.spend` that describe the call of a model.

    All are optional, but numbers of tokens need a `model`.

    Attributes:
        model: The name of the model, for example "gpt-4o".
        provider: The provider of the model, for example "openai", if several providers have a model of this name.
        input_tokens: Input tokens, including tokens that were read from a cache or written to it.
        output_tokens: Output tokens.
        cache_read_tokens: The input tokens that were read from a cache.
        cache_write_tokens: The input tokens that were written to a cache.
    """

    model: str
    provider: str | None
    input_tokens: int
    output_tokens: int
    cache_read_tokens: int
    cache_write_tokens: int


_TOKENS = ("input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens")


def count_tokens(usage: ModelUsage) -> int:
    """Check the usage of a model call, and return its input and output tokens together.

    Raises:
        BadOption: If a keyword or a value is not valid.
    """
    if unknown := set(usage) - set(ModelUsage.__annotations__):
        raise BadOption(f"spend has no argument {sorted(unknown)[0]!r}")
    if not usage:
        return 0
    if not isinstance(usage.get("model"), str):
        raise BadOption(f"spend({', '.join(usage)}) needs the name of the model: model=…")
    numbers: dict[str, Any] = {name: usage.get(name, 0) for name in _TOKENS}
    for number in numbers.values():
        Amount.of(0, number, 0)
    if numbers["cache_read_tokens"] + numbers["cache_write_tokens"] > numbers["input_tokens"]:
        raise BadOption("input_tokens must include the tokens that were read from a cache or written to it")
    return int(numbers["input_tokens"] + numbers["output_tokens"])


def price(**usage: Unpack[ModelUsage]) -> Decimal:
    """Return the dollars that a call of a model costs, from the table that is installed with genai-prices.

    Args:
        **usage: The call, as for `run.spend`.

    Raises:
        UnknownPrice: If the table does not know the model, or the package genai-prices is not installed.
        BadOption: If a value is not valid.
    """
    count_tokens(usage)
    return _look_up(usage, _SPEND_ADVICE, provider_id=usage.get("provider"))


class ModelName(NamedTuple):
    """The name of a model, and its provider as far as a framework knows it.

    Attributes:
        name: The name of the model.
        provider: The name of the provider, for example "openai".
        url: The URL of the provider's API. It is more exact than the name: many providers have the API of OpenAI.
    """

    name: str
    provider: str | None = None
    url: str | None = None


def price_by_names(models: Iterable[ModelName], usage: ModelUsage, advice: str) -> Decimal:
    """Return the dollars that a call of a model costs, for the first of several names of the model that the table knows.

    Each name is looked up at the URL of the provider, then at the provider, and then without a provider. The last look-up is
    for the whole name. So `gpt-4o` of an unknown provider has the usual price of `gpt-4o`, but the price of `ollama/gpt-4o` is not
    known, because the price of a paid model would be wrong for a local one. A name with a gateway, such as
    `openrouter/anthropic/claude-sonnet-4-5`, is also looked up at the provider after the gateway.

    Args:
        models: The names of the model, at least one.
        usage: The tokens of the call.
        advice: What to do if the price is not known, for the error message.

    Raises:
        UnknownPrice: If the table knows none of the names, or the package genai-prices is not installed.
    """
    unknown = None
    for model in models:
        for name, place in _places(model):
            try:
                return _look_up({**usage, "model": name}, advice, **place)
            except UnknownPrice as error:
                unknown = error if name == model.name else unknown  # the message has the name that the caller knows
    assert unknown is not None
    raise unknown


def _places(model: ModelName) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the names of a model and the arguments with which genai-prices finds its provider, the most exact first."""
    if model.url:
        yield model.name, {"provider_api_url": model.url}
    if model.provider:
        yield model.name, {"provider_id": model.provider}
    yield model.name, {}
    first, *after = model.name.split("/", 2)
    if first in _GATEWAYS and len(after) == 2:
        provider, name = after
        yield name, {"provider_id": provider}


def _look_up(usage: ModelUsage, advice: str, **place: Any) -> Decimal:
    try:
        from genai_prices import Usage, calc_price
    except ImportError as error:
        raise UnknownPrice(
            f"the price of model {usage['model']!r} needs an optional package ({error}): {INSTALL}"
        ) from None
    numbers: dict[str, Any] = {name: usage.get(name) for name in _TOKENS}
    try:
        return calc_price(Usage(**numbers), usage["model"], **place).total_price
    except LookupError as error:
        raise UnknownPrice(f"the table of prices does not know model {usage['model']!r} ({error}): {advice}") from None
