"""What the name of a column says: its words, and whether it names an id, a time or an amount."""

from __future__ import annotations

import re
from collections.abc import Sequence

# user_id, user-id, user id, userId, UserID, user.id
BETWEEN = re.compile(r"[\W_]+|(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
RECBOLE = re.compile(r":(token|float)(_seq)?$")  # the atomic files of RecBole write the type behind the name
GLUED = ("uuid", "guid", "ids", "id", "code", "nbr", "timestamp", "datetime", "time", "date")  # userid, zipcode


def list_words(text: str) -> frozenset[str]:
    """List the words of a text as a set."""
    return frozenset(text.split())


# English words, and words of column names, that end like these but are one word.
WHOLE_WORDS = list_words(
    """
    acid aid amid android arid asteroid avid avoid bid bids braid candid centroid covid cuboid did druid fluid
    forbid grid grids hid humid hybrid hybrids invalid kid kids laid lid liquid liquids lucid mermaid mid morbid
    orchid overpaid paid plaid pyramid raid rapid repaid rigid said solid solids squid steroid stupid thyroid
    timid underpaid unpaid valid vivid void decode encode episode transcode unicode downtime lifetime overtime
    parttime fulltime sometime uptime candidate consolidate mandate update validate
    """
)
ID_WORDS = list_words(
    """
    id ids uid uuid guid cid pid gid sid tid oid fid eid nid vid code key hash zip zipcode postcode sku isbn
    asin ean upc gtin imei ssn iban
    """
)
# What has ids: a column of numbers with the bare name holds the ids, too.
ENTITIES = list_words(
    """
    account acct artist author book buyer client cookie customer device item member merchant movie product
    seller session shop song store track user vendor visitor
    """
)
# Behind another word: customer_no, store_nbr.
NUMBERS = list_words("no nbr nr number")
# Behind these a number counts: order_number.
ORDINALS = list_words("day episode lap line order page round season step visit week")
TIMES = list_words(
    "time timestamp ts date datetime at epoch unix hour day dt dob birthday birthdate created updated modified"
)
# Parts of a calendar: they go round, and a model may take each for a value of its own.
CALENDAR = list_words("month months mon mnth quarter qtr weekday weekdays dow day daymonth hour hr week season minute")
# What has codes rather than amounts, if it is written in whole numbers.
CODED = list_words(
    """
    airline airport aisle arm bank batch block brand browser bucket campus canton carrier cat category center centre
    channel chr chromosome city class clinic cluster colony color colour community company country county course
    cuisine dealer department dept device diagnosis district division doctor domain eth ethnic ethnicity expert
    family farm field film firm flag flight gene genre group hh hospital household industry inst institution
    instructor job judge kind lang language league lecturer litter locality locus lot machine major make maker
    manufacturer market mode municipality nation nationality neighborhood occ occupation operator origin os parish
    participant party patient person platform player plot port precinct program project province publisher pupil
    race rater reason region religion respondent route school sector segment sex shift site specialty species state
    station status store strain street student subject supplier taxon teacher team territory topic town trader
    treatment type variety vehicle village voter ward worker zone
    """
)
ANONYMOUS = re.compile(r"C\d+|(cat|Cat|nom)_?\d+")  # columns of codes in public data without names
# In front of another word: num_items, n_users.
COUNTED = list_words("num n nr no cnt count number avg mean total sum max min")
AMOUNTS = list_words(
    """
    adults age ages amount amt attempts attendance balance bath bathrooms baths bedroom bedrooms beds capacity
    capita cars children clicks cnt comments coord coordinate cost count counts days dependents discount distance
    downloads duration earnings educ experience fare floors followers freq frequency friends goals gpa grade height
    hours humidity impressions income installments kids length likes logins losses mileage minutes months mpg orders
    parch passengers payments pct percent percentage points pop pops population price purchases qty quantity
    rainfall rate ratio retweets revenue reviews rooms salary sales score seats seconds shares siblings sibsp size
    speed stops temp temperature tenure tickets times total transactions trips views visitors visits volume votes
    wage wages weeks weight width wins years
    """
)


def words_of(name: str) -> list[str]:
    """The words of a name, in small letters; known endings of a word without any sign between are words of their own.

    >>> words_of("User-ID"), words_of("visitorid"), words_of("eventTime"), words_of("paid"), words_of("sib sp")
    (['user', 'id'], ['visitor', 'id'], ['event', 'time'], ['paid'], ['sib', 'sp'])
    """
    bare = RECBOLE.sub("", name).replace("IDs", "Ids")
    words = []
    for word in BETWEEN.split(bare):
        words += _split_ending(word.lower())
    return words


def _split_ending(word: str) -> list[str]:
    if not word:
        return []
    if word in WHOLE_WORDS or word in ID_WORDS or word in TIMES:
        return [word]
    if word.startswith("n") and word[1:] in AMOUNTS:  # nkids
        return ["n", word[1:]]
    if word.startswith("num") and len(word) > 5 and not word.startswith(("number", "numer")):  # numvisits
        return ["num", word[3:]]
    ending = next((e for e in GLUED if word.endswith(e) and len(word) > len(e)), None)
    return [word.removesuffix(ending), ending] if ending else [word]


def is_id_name(name: str) -> bool:
    """Tell whether a name is that of ids.

    >>> [is_id_name(name) for name in ("USERID", "customer_no", "account number", "zip code", "item", "id_hotel")]
    [True, True, True, True, True, True]
    >>> [is_id_name(name) for name in ("grid", "unpaid", "number", "num_items", "order_number", "education-num")]
    [False, False, False, False, False, False]
    """
    words = words_of(name)
    if not words or (len(words) > 1 and words[0] in COUNTED):
        return False
    *before, last = words
    if last in NUMBERS:
        return bool(before) and before[-1] not in ORDINALS
    if last == "num":
        return bool(before) and before[-1] in ENTITIES
    return last in ID_WORDS or last in ENTITIES or words[0] == "id"


def is_time_name(name: str) -> bool:
    """Tell whether a name is that of times; only values tell whether they are.

    >>> [is_time_name(name) for name in ("event_time", "unixReviewTime", "releasedate", "createdAt", "hour", "update")]
    [True, True, True, True, True, False]
    """
    return bool(TIMES & {*words_of(name)})


def is_amount_name(name: str) -> bool:
    """Tell whether a name is that of an amount, also where it has few values.

    >>> [is_amount_name(name) for name in ("Age", "num_items", "SibSp", "hours-per-week", "age76", "month", "item")]
    [True, True, True, True, True, False, False]
    """
    words = _without_numbers(words_of(name))
    if not words:
        return False
    if len(words) > 1 and words[0] in COUNTED:
        return True
    if len(words) > 1 and words[0] in AMOUNTS and words[1] in ("per", "of", "in", "since"):
        return True
    return words[-1] in AMOUNTS or "".join(words) in AMOUNTS


def is_code_name(name: str) -> bool:
    """Tell whether a name is that of codes, if the values are whole numbers.

    >>> [is_code_name(name) for name in ("county", "product category", "C14", "Wilderness_Area", "ps_car_11_cat", "x")]
    [True, True, True, False, True, False]
    """
    if ANONYMOUS.fullmatch(name):
        return True
    words = _without_numbers(words_of(name))
    return bool(words) and words[-1] in CODED and words[0] not in COUNTED


def is_calendar_name(name: str) -> bool:
    """Tell whether a name is that of a part of a calendar, such as a month.

    >>> [is_calendar_name(name) for name in ("order_hour_of_day", "mnth", "DayOfWeek", "year")]
    [True, True, True, False]
    """
    return bool(CALENDAR & {*_without_numbers(words_of(name))})


def _without_numbers(words: Sequence[str]) -> list[str]:
    """Words without the numbers behind them: age76 is an age."""
    return [bare for word in words if (bare := word.rstrip("0123456789"))]


# Names of what is to be predicted, the likeliest first.
LABELS = (
    "label",
    "target",
    "is_click",
    "clicked",
    "click",
    "is_purchase",
    "purchased",
    "purchase",
    "converted",
    "conversion",
    "is_fraud",
    "fraud",
    "is_churn",
    "churn",
    "churned",
    "exited",
    "survived",
    "default_payment_next_month",
    "is_default",
    "default",
    "outcome",
    "response",
    "rating",
    "stars",
    "class",
    "y",
)
# They name other things as often: the class of a ticket, a default in an earlier year.
COMMON = frozenset(("y", "class", "default", "outcome", "response", "purchase"))
COMMON_OF_TEXTS = frozenset(("rating", "stars"))  # PG-13


def label_rank(name: str) -> int | None:
    """Return the place of a name among those of labels; None for another name.

    >>> [label_rank(name) is not None for name in ("isFraud", "Survived", "Class", "default payment", "rate")]
    [True, True, True, False, False]
    """
    joined = "_".join(words_of(name))
    return LABELS.index(joined) if joined in LABELS else None


def is_label_name(name: str) -> bool:
    return label_rank(name) is not None


def is_common_name(name: str, number: bool) -> bool:
    """Tell whether a name of a label names features as often."""
    joined = "_".join(words_of(name))
    return joined in COMMON or (joined in COMMON_OF_TEXTS and not number)
