"""Needs: the amounts and tags that a stage asks of its worker, and what workers have."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from itertools import islice, product
from typing import Any

from dasktune._numbers import real_of
from dasktune.errors import ConfigurationError, plain, refuse, shown

TAGS = "tags"
"""The name in a mapping of needs under which its tags stand."""

TAG_RESOURCE = "tag:"
"""Begins the name of a Dask resource that is a tag, such as ``tag:lab3`` with the amount 1."""

SIZES = ("GPU", "cores", "memory")
"""The names of amounts that tell a better class of workers from a worse one, the first first."""

MOST_ALTERNATIVES = 100
"""Most alternatives of one study or configuration."""

MOST_LETTERS = 100
"""Most letters of the name of an amount, and of a tag: messages and tables name them."""

LABELS = f"printable, without blanks at the ends, and of at most {MOST_LETTERS} letters"
"""How the names of amounts, and tags, must be."""

MOST_OFFERS = 8
"""Kinds of workers that one sentence names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NumericClass:
    """Workers on which the same steps give the same bits.

    Parameters
    ----------
    name
        Its name, such as ``cuda NVIDIA A100-SXM4-40GB``.
    in_keys
        Whether the keys of states that are trained there name it.
    """

    name: str
    in_keys: bool = False

    @property
    def facts(self) -> dict[str, str]:
        """The facts that its state keys name (`dasktune.graph.keys.named_key`)."""
        return {"class": self.name} if self.in_keys else {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """The amounts and tags that a worker has for the stages that it runs.

    Parameters
    ----------
    kind
        The name of its compute class; empty if it is not known.
    amounts
        Amounts by name, sorted.
    tags
        Its tags, in lower case.
    numerics
        Its numeric class; None where all workers are taken for one.
    """

    kind: str = ""
    amounts: tuple[tuple[str, float], ...] = ()
    tags: frozenset[str] = frozenset()
    numerics: NumericClass | None = None

    @classmethod
    def of(
        cls,
        amounts: Mapping[str, float],
        kind: str = "",
        tags: Iterable[str] = (),
        *,
        numerics: NumericClass | None = None,
    ) -> Offer:
        """Return the offer of a worker with these amounts and tags."""
        pairs = tuple(sorted(amounts.items()))
        return cls(kind=kind, amounts=pairs, tags=frozenset(tags), numerics=numerics)

    @property
    def size(self) -> tuple[float, ...]:
        """Its amounts of `SIZES`, in that order: the larger, the better while no speed is known."""
        has = dict(self.amounts)
        return tuple(has.get(name, 0.0) for name in SIZES)

    def __str__(self) -> str:
        named = (pair for pair in self.amounts if not pair[0].startswith(TAG_RESOURCE))
        amounts = [f"{name}={amount:g}" for name, amount in named]
        has = ", ".join([*amounts, *(["tags " + " ".join(sorted(self.tags))] if self.tags else [])])
        numerics = "" if self.numerics is None else f", numeric class {self.numerics.name!r}"
        return f"{self.kind or 'a worker'} ({has or 'neither amounts nor tags'}{numerics})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """One alternative of needs: amounts, which a stage uses up, and tags, which it does not.

    Parameters
    ----------
    amounts
        Amounts > 0 by name, sorted.
    tags
        Tags that the worker must have, in lower case.
    numerics
        The numeric class that it must be of; None for any. Users do not write it: it follows from
        where the earlier steps were trained.
    """

    amounts: tuple[tuple[str, float], ...] = ()
    tags: frozenset[str] = frozenset()
    numerics: NumericClass | None = None

    def fits(self, offer: Offer) -> bool:
        """Whether a worker has all of it."""
        # By name: in a store that was replaced, keys may name another class.
        offered = None if offer.numerics is None else offer.numerics.name
        if self.numerics is not None and self.numerics.name != offered:
            return False
        if not self.tags <= offer.tags:
            return False
        has = dict(offer.amounts)
        return all(has.get(name, 0.0) >= amount for name, amount in self.amounts)

    def to_json(self) -> dict[str, object]:
        """Return it as JSON, in the form that `Needs.of` takes."""
        return {**dict(self.amounts), **({TAGS: sorted(self.tags)} if self.tags else {})}

    def __str__(self) -> str:
        words = [f"{name}={amount:g}" for name, amount in self.amounts]
        words += [f"tag {tag}" for tag in sorted(self.tags)]
        if self.numerics is not None:
            words.append(f"numeric class {self.numerics.name!r}, on which its steps began")
        return ", ".join(words) or "nothing"


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """The needs of stages: any one of the alternatives is enough.

    A stage runs on a worker that has all amounts and all tags of one alternative. It uses the
    amounts up while it runs. Needs decide where steps are trained; they are no part of state keys,
    except for the number of devices of a trainer that divides itself.

    Parameters
    ----------
    alternatives
        The preferred alternative first; a `Need` without amounts and tags fits every worker.

    Examples
    --------
    >>> needs = Needs.of([{"GPU": 1, "tags": ["A100"]}, {"cores": 16}])
    >>> print(needs)
    GPU=1, tag a100 or cores=16
    >>> needs.fits(Offer.of({"GPU": 2}, tags=["a100", "gpu"])), needs.fits(Offer.of({"GPU": 2}))
    (True, False)
    """

    alternatives: tuple[Need, ...] = (Need(),)

    @classmethod
    def of(cls, given: object) -> Needs:
        """Return the needs that a user wrote.

        Parameters
        ----------
        given
            A mapping of amounts by name, in which ``tags`` is a word or a list of words; a list of
            such mappings, any one of which is enough; None for no needs; or `Needs`.

        Raises
        ------
        ConfigurationError
            If it has another form: all problems at once.
        """
        if isinstance(given, Needs):
            return given
        refuse(needs_problems(given))
        return cls(alternatives=tuple(dict.fromkeys(map(_need_of, _mappings(given)))))

    @property
    def are_none(self) -> bool:
        """Whether every worker is good enough."""
        return Need() in self.alternatives

    @property
    def tags(self) -> frozenset[str]:
        """The tags of all alternatives."""
        return frozenset(tag for need in self.alternatives for tag in need.tags)

    def least(self, name: str) -> float:
        """Return the amount that each alternative asks for at least, 0 if one asks for none."""
        return min(dict(need.amounts).get(name, 0.0) for need in self.alternatives)

    def fits(self, offer: Offer) -> bool:
        """Whether a worker has all of one alternative."""
        return any(need.fits(offer) for need in self.alternatives)

    def may_fit(self, offer: Offer) -> bool:
        """Whether a worker has all of one alternative if its tags and numeric class are right."""
        unmarked = (replace(need, tags=frozenset(), numerics=None) for need in self.alternatives)
        return any(need.fits(offer) for need in unmarked)

    def on(self, numerics: NumericClass) -> Needs:
        """Return the needs of the same stages, on workers of a numeric class only."""
        needs = (replace(need, numerics=numerics) for need in self.alternatives)
        return Needs(alternatives=tuple(dict.fromkeys(needs)))

    def claims(self, offer: Offer) -> dict[str, float]:
        """Return the amounts that a stage uses up on a worker: those of the first that fits."""
        fitting = (need for need in self.alternatives if need.fits(offer))
        return dict(next(fitting, Need()).amounts)

    def devices(self) -> int:
        """Return how many devices a stage uses at once: GPUs, or cores where it asks for no GPU.

        Raises
        ------
        ConfigurationError
            If that depends on the alternative.
        """
        refuse(self.device_problems())
        return _devices(self.alternatives[0])

    def device_problems(self) -> list[str]:
        """Return why the number of devices is not known before a worker is chosen, if so."""
        if len(set(map(_devices, self.alternatives))) == 1:
            return []
        return [
            "all alternatives of needs must have as many GPUs, or cores if they have no GPU, since "
            f"the trainer divides itself and results depend on their number, got {self}"
        ]

    def to_json(self) -> list[dict[str, object]]:
        """Return them as JSON, in the form that `of` takes."""
        return [need.to_json() for need in self.alternatives]

    def __str__(self) -> str:
        return " or ".join(map(str, self.alternatives))


Amounts = Mapping[str, float | str | Iterable[str]]
"""One alternative as users write it: amounts by name, and ``tags``."""

GivenNeeds = Amounts | list[Amounts] | Needs
"""Needs as users write them; see `Needs.of`."""

NeedsFunction = Callable[[dict[str, Any]], "GivenNeeds | None"]
"""Returns the needs of a configuration from its values at step 0, by name."""

NO_NEEDS = Needs()
"""The needs of a stage that any worker may run."""


def needs_problems(given: object) -> list[str]:
    """Return the problems of needs as a user wrote them."""
    if given is None or isinstance(given, Needs):
        return []
    if isinstance(given, Mapping):
        return list(_need_problems(given))
    if not isinstance(given, list | tuple):
        return [
            "needs must be a mapping of amounts and tags, a list of such mappings, or a function "
            f"of the configuration, got {shown(given)}"
        ]
    if not 1 <= len(given) <= MOST_ALTERNATIVES:
        return [f"needs must have 1 to {MOST_ALTERNATIVES} alternatives, got {len(given)}"]
    return [problem for each in given for problem in _need_problems(each)]


def _need_problems(given: object) -> Iterator[str]:
    """Yield what is wrong with one alternative."""
    if not isinstance(given, Mapping):
        yield f"needs must be finite numbers > 0 by name, got {shown(given)}"
        return
    amounts = {name: amount for name, amount in given.items() if not _are_tags(name, amount)}
    if not all(isinstance(name, str) and name and _is_amount(a) for name, a in amounts.items()):
        yield f"needs must be finite numbers > 0 by name, got {shown(dict(amounts))}"
    elif not all(map(is_label, amounts)):
        yield f"needs must have names that are {LABELS}, got {shown(list(amounts))}"
    for name, words in given.items():
        if not _are_tags(name, words):
            continue
        listed = [words] if isinstance(words, str) else words
        if not all(isinstance(tag, str) and len(tag.split()) == 1 for tag in listed):
            yield f"tags of needs must be words, got {shown(words)}"
        elif not all(is_label(tag.strip()) for tag in listed):
            yield f"tags of needs must be {LABELS}, got {shown(words)}"


def is_label(text: str) -> bool:
    """Whether a name or a tag fits into messages and tables: it is as `LABELS` says."""
    return 0 < len(text) <= MOST_LETTERS and text.isprintable() and text == text.strip()


def _are_tags(name: object, value: object) -> bool:
    """Whether an item of a mapping is its tags; a resource may have that name, too."""
    return name == TAGS and isinstance(value, str | list | tuple | set | frozenset)


def _is_amount(value: object) -> bool:
    return 0 < real_of(value) < math.inf


def _mappings(given: Any) -> Iterable[Mapping[str, Any]]:
    if given is None:
        return ({},)
    return (given,) if isinstance(given, Mapping) else given


def _need_of(given: Mapping[str, Any]) -> Need:
    """Return one alternative, which was checked."""
    tags = given.get(TAGS, ()) if _are_tags(TAGS, given.get(TAGS)) else ()
    words = [tags] if isinstance(tags, str) else tags
    amounts = {name: real_of(value) for name, value in given.items() if not _are_tags(name, value)}
    return Need(
        amounts=tuple(sorted(amounts.items())), tags=frozenset(tag.strip().lower() for tag in words)
    )


def any_of(needs: Iterable[Needs]) -> Needs:
    """Return needs that a worker meets if it meets any of these."""
    listed = sorted((need for each in needs for need in each.alternatives), key=str)
    return Needs(alternatives=tuple(dict.fromkeys(listed)) or NO_NEEDS.alternatives)


def _devices(need: Need) -> int:
    amounts = dict(need.amounts)
    return max(1, int(amounts.get("GPU", amounts.get("cores", 1.0))))


def all_of(parts: Mapping[str, Needs]) -> Needs:
    """Return needs that a worker meets if it meets all of these.

    Each alternative joins one alternative of each part. Tags add up. An amount that two parts name
    must be the same in both, because nobody said which of two amounts is meant.

    Parameters
    ----------
    parts
        The needs by the part of the study that has them, in words.

    Raises
    ------
    ConfigurationError
        If no alternatives agree, or there are too many.

    Examples
    --------
    >>> study = Needs.of({"GPU": 1})
    >>> print(all_of({"the study": study, "model=deep": Needs.of({"tags": "a100"})}))
    GPU=1, tag a100
    """
    joined: list[Need] = [Need()]
    for needs in parts.values():
        pairs = product(joined, needs.alternatives)
        both = (_both(need, added) for need, added in pairs)
        joined = list(dict.fromkeys(need for need in both if need is not None))
        if not 1 <= len(joined) <= MOST_ALTERNATIVES:
            named = " and ".join(f"{each} of {name}" for name, each in parts.items())
            problem = (
                f"together they have {len(joined):,} alternatives, more than {MOST_ALTERNATIVES}"
                if joined
                else "they name unlike amounts"
            )
            raise ConfigurationError(f"needs must agree, got {named}: {problem}")
    return Needs(alternatives=tuple(joined))


def _both(need: Need, added: Need) -> Need | None:
    """Return the need of two alternatives together; None if they contradict each other."""
    amounts = dict(need.amounts)
    for name, amount in added.amounts:
        if amounts.setdefault(name, amount) != amount:
            return None
    return Need(amounts=tuple(sorted(amounts.items())), tags=need.tags | added.tags)


# ---------------------------------------------------------------------- in words


def offers_text(offers: Iterable[Offer]) -> str:
    """Return the different offers of workers in words.

    Examples
    --------
    >>> offers_text([Offer.of({}, "8 cores"), Offer.of({"GPU": 1}, "H100 80 GB", ["gpu"])])
    '8 cores (neither amounts nor tags); H100 80 GB (GPU=1, tags gpu)'
    """
    texts = sorted(set(map(str, offers)))
    more = [f"{len(texts) - MOST_OFFERS:,} kinds more"] if len(texts) > MOST_OFFERS else []
    return "; ".join([*islice(texts, MOST_OFFERS), *more])


def unmet_text(needs: Needs, offers: Iterable[Offer]) -> str:
    """Return why no worker fits needs: the tags that none has, and what the workers have.

    Examples
    --------
    >>> print(unmet_text(Needs.of({"tags": "a10"}), [Offer.of({}, "8 cores", ["a100", "gpu"])]))
    no worker has tag a10; no worker has a tag 'a10', nearest is 'a100'; workers: 8 cores (tags \
a100 gpu)
    """
    offers = list(offers)
    known = sorted({tag for offer in offers for tag in offer.tags})
    parts = [f"no worker has {needs}"]
    for tag in sorted(needs.tags.difference(known)):
        near = get_close_matches(tag, known, n=1)
        nearest = f", nearest is {near[0]!r}" if near else ""
        parts.append(f"no worker has a tag {tag!r}{nearest}")
    return "; ".join([*parts, f"workers: {offers_text(offers)}" if offers else "there is none"])


def needs_from(function: NeedsFunction, values: Mapping[str, Any]) -> Needs:
    """Return the needs that a function of the user gives for one configuration.

    Parameters
    ----------
    function
        The function.
    values
        The values of the hyper-parameters at step 0, by name.

    Raises
    ------
    ConfigurationError
        If the function raises, or returns something else than needs.
    """
    shown_values = shown(dict(values))
    try:
        given = function(dict(values))
    except Exception as error:
        raise ConfigurationError(
            f"needs must be known for {shown_values}: {type(error).__name__}: {plain(str(error))}"
        ) from error
    refuse(f"{problem}, for {shown_values}" for problem in needs_problems(given))
    return Needs.of(given)
